"""Owns the servers that all tests of agents may ask for."""

from tests.kit.providers.llama import llama as llama
