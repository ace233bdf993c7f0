"""A typed answer by instructor."""

import os

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Word(BaseModel):
    word: str


client = instructor.from_openai(
    OpenAI(base_url=f"{os.environ['BASE_URL']}/v1", max_retries=0), mode=instructor.Mode.JSON_SCHEMA
)
answer = client.chat.completions.create(
    model=os.environ["MODEL"], messages=[{"role": "user", "content": os.environ["QUESTION"]}], response_model=Word
)
print(answer.word)
