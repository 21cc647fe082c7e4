"""Owns the servers that all tests of agents may ask for."""

from tests.rigs.llama import llama as llama
