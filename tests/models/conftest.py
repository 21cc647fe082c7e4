"""Owns the servers that all tests of models may ask for."""

from tests.kit.providers.llama import llama as llama
