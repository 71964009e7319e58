"""The rules, as pure functions and values: no Django, no database, no clock."""
