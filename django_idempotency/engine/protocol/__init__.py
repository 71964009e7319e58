"""The rules of the package, as pure functions and values. They use no Django, no database and no clock."""
