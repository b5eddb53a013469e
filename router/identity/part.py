"""A part of a message, as far as a prompt's bytes want it."""

import msgspec


class Part(msgspec.Struct):
    """Text, if it has any and nothing else."""

    type: str = "text"
    text: str | None = None
    # Fields that make something else of it, whatever its type.
    image_url: msgspec.Raw = msgspec.Raw()
    input_audio: msgspec.Raw = msgspec.Raw()
    audio_url: msgspec.Raw = msgspec.Raw()
    video_url: msgspec.Raw = msgspec.Raw()
    file: msgspec.Raw = msgspec.Raw()
    source: msgspec.Raw = msgspec.Raw()
    uuid: msgspec.Raw = msgspec.Raw()

    @property
    def is_text(self) -> bool:
        """Whether there is nothing but its text."""
        media = (self.image_url, self.input_audio, self.audio_url, self.video_url)
        return self.text is not None and not any((*media, self.file, self.source, self.uuid))
