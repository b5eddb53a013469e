"""A part of a message, with the fields that a prompt's canonical bytes depend on."""

import msgspec


class KeyedPart(msgspec.Struct):
    """One part. It is text if it has text and none of the other fields."""

    type: str = "text"
    text: str | None = None
    # Fields that make it something other than text, whatever its type.
    image_url: msgspec.Raw = msgspec.Raw()
    input_audio: msgspec.Raw = msgspec.Raw()
    audio_url: msgspec.Raw = msgspec.Raw()
    video_url: msgspec.Raw = msgspec.Raw()
    file: msgspec.Raw = msgspec.Raw()
    source: msgspec.Raw = msgspec.Raw()
    uuid: msgspec.Raw = msgspec.Raw()

    @property
    def is_text(self) -> bool:
        """Return true if it is nothing but text."""
        media = (self.image_url, self.input_audio, self.audio_url, self.video_url)
        return self.text is not None and not any((*media, self.file, self.source, self.uuid))
