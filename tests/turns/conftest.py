"""Owns the servers that tests of turns may ask for."""

from tests.kit.providers.llama import llama as llama
