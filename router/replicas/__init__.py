"""What the processes of one router tell each other of their requests.

`messages.py` has the messages, `sockets.py` the sockets that carry them, `replication.py` what is
sent and when, and `mirror.py` what the others do with it. `channel.py` is the conversation between
a process and its parent, and how each notices that the other does not answer.

Starting, restarting and stopping processes is in `router/processes/`.
"""
