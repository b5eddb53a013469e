// The official JavaScript client, told what to do by lines of JSON and answering in lines of JSON.
//
//   {"id": 1, "url": "http://…", "name": "models.list", "how": "pages", "positional": [], …}
//
// is answered by {"id": 1, "event": …} for everything that a stream gives, as it comes, and then by
//
//   {"id": 1, "result": …, "seen": […], "sent": […]}, or with "error" in place of "result".
//
// {"abort": 1} aborts what was asked under that id. The argument is the folder that holds the client.

import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const OpenAI = createRequire(`${process.argv[2]}/`)('openai');

const running = new Map();

/** The ways to make a call. `make` makes it; `see` keeps what came, also when it fails later. */
const ways = {
  async call({ make }) {
    return await make();
  },

  async raw({ make }) {
    const { data, response, request_id } = await make().withResponse();
    return { data, status: response.status, headers: fields(response), request_id };
  },

  async bytes({ make }) {
    const response = await make().asResponse();
    const body = Buffer.from(await response.arrayBuffer()).toString('base64');
    return { status: response.status, headers: fields(response), body };
  },

  async events({ make, see }) {
    for await (const event of await make()) see(event);
  },

  async pages({ make, see }) {
    for await (const item of make()) see(item);
  },

  /** Leave the loop after the first event. */
  async first({ make, see }) {
    for await (const event of await make()) {
      see(event);
      break;
    }
  },

  /** Abort the stream itself after its first event. */
  async controller({ make, see }) {
    const stream = await make();
    for await (const event of stream) {
      see(event);
      stream.controller.abort();
    }
  },

  /** The helpers that build up the whole answer while it streams. */
  async helper({ make, see }) {
    const stream = make();
    for await (const event of stream) see(event);
    return await (stream.finalChatCompletion ?? stream.finalResponse).call(stream);
  },
};

const fields = (response) => Object.fromEntries(response.headers);

/** A method by the way to it, `chat.completions.create`. */
function method(client, name) {
  const path = name.split('.');
  const last = path.pop();
  const place = path.reduce((at, part) => at[part], client);
  return place[last].bind(place);
}

function told(error) {
  const { status, code, param, type, message, requestID, error: body } = error;
  const headers = error.headers && Object.fromEntries(error.headers);
  const classes = [];
  for (let at = error; at && at !== Object.prototype; at = Object.getPrototypeOf(at)) {
    if (Object.hasOwn(at, 'constructor')) classes.push(at.constructor.name);
  }
  return { classes, status, code, param, type, message, requestID, body, headers };
}

async function obey({ id, url, name, how, options, positional, request }) {
  const seen = [];
  const sent = [];
  const controller = new AbortController();
  running.set(id, controller);
  const client = new OpenAI({
    baseURL: `${url}/v1`,
    apiKey: 'sk-test',
    maxRetries: 0,
    ...options,
    fetch(target, init) {
      sent.push(init.body);
      return globalThis.fetch(target, init);
    },
  });
  const make = () => method(client, name)(...positional, { ...request, signal: controller.signal });
  const see = (event) => {
    seen.push(event);
    tell({ id, event });
  };
  const answer = { id, seen, sent };
  try {
    answer.result = await ways[how]({ make, see });
  } catch (error) {
    answer.error = told(error);
  }
  running.delete(id);
  tell(answer);
}

const tell = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  if (order.abort) running.get(order.abort)?.abort();
  else obey(order);
}
