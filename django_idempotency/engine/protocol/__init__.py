"""The rules of the package, as pure functions and values. The rules use no Django, no database and no clock."""
