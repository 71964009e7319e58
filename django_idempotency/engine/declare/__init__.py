"""When Python imports a module of the project, the package `declare` protects the views of that module. If a view
cannot be protected, the package raises an error.
"""
