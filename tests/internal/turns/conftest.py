"""Owns the servers that the tests beside it may ask for."""

from tests.kit.providers.llama import llama as llama
