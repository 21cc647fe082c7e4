"""Owns the servers that tests of turns may ask for."""

from tests.rigs.llama import llama as llama
