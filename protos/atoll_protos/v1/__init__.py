"""Generated code of atoll.proto; see tests/unit for the check that it is current."""
