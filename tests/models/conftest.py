"""Owns the servers that all tests of models may ask for."""

from tests.rigs.llama import llama as llama
