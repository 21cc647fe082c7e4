"""Text on disk, whole; leases that end with their holder; disk work that ends before its caller does."""

from safepoint.run import CheckpointInUse


def test_an_error_about_a_lease_survives_a_copy():
    error = CheckpointInUse("k", "the folder", "process 7 on here since then")
    again = type(error)(*error.args)
    assert str(again) == str(error)
    assert (again.key, again.where, again.holder) == ("k", "the folder", "process 7 on here since then")
