"""What `dramatiq` imports."""

import django

django.setup()
