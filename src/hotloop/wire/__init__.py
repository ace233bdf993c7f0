"""OpenAI's chat completions and responses and Anthropic's messages: each format read and written once, for everybody.

A request body is parsed into a `Request` and rendered from one; an answer is read as `Event`s and written from them, at
once or as a stream. Nothing here opens a socket or knows a model.
"""
