"""Owns the servers that the tests beside it may ask for."""

from tests.rigs.llama import llama as llama
