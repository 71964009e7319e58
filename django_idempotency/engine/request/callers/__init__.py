"""Who sent a request? The answer is its scope: callers with different scopes never share a key or a response.

# Note [Verified and sent]
Two requests with different credentials may have the same verified data, so a client that has renewed its token is still
the same caller. Data that was merely sent may be forged, so it serves only to tell requests apart. It never equals
verified data, and is hashed together with all other credentials of the request.

Each source of identity is one module. Frameworks and packages are recognized by the names or the structure of their
classes, so none of them is imported.
"""

from .parts import HandedOn, acting_for
from .scopes import ANONYMOUS, BY_HEADER, advise, advise_of_renewal, handed_on, project_scope, scope_of
from .tokens import is_text, name_among
from .users import is_authenticated, logged_in, scope_of_user, user_of

__all__ = ["ANONYMOUS", "BY_HEADER", "HandedOn", "acting_for", "advise", "advise_of_renewal", "handed_on"]
__all__ += ["is_authenticated", "is_text", "logged_in", "name_among", "project_scope", "scope_of", "scope_of_user"]
__all__ += ["user_of"]
