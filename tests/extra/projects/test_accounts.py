"""dj-rest-auth and djoser, with tokens of django-oauth-toolkit."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.extra.projects.harness import Project, Site, dies

NEEDS = ["allauth", "dj_rest_auth", "djoser", "oauth2_provider"]
PROJECT = Project("accounts", ready="/rest-auth/registration/")
SEED = """
from oauth2_provider.models import Application
for name in ("phone", "browser"):
    Application.objects.create(name=name, client_id=name, client_type="public", authorization_grant_type="password")
"""
OLD, NEW = "correct horse battery", "staple of the horses"
DJ_REST_AUTH = ("/rest-auth/password/change/", {"old_password": OLD, "new_password1": NEW, "new_password2": NEW}, 200)
DJOSER = ("/djoser/users/set_password/", {"current_password": OLD, "new_password": NEW}, 204)


def send(client: httpx.Client, path: str, data: Any, key: str, token: str = "", fault: str = "") -> httpx.Response:
    headers = {"Idempotency-Key": key, "X-Fault": fault, **({"Authorization": f"Bearer {token}"} if token else {})}
    return client.post(path, json=data, headers=headers)


def lost_and_repeated(client: httpx.Client, *request: Any) -> httpx.Response:
    """The worker dies after its COMMIT, and the client sends the request again."""
    dies(lambda: send(client, *request, fault="kill after COMMIT"))
    return send(client, *request)


def registered(client: httpx.Client, name: str) -> None:
    send(client, "/djoser/users/", {"username": name, "password": OLD}, name).raise_for_status()


def token_of(client: httpx.Client, name: str, application: str, password: str = OLD) -> str:
    form = {"grant_type": "password", "client_id": application, "username": name, "password": password}
    return str(client.post("/o/token/", data=form).raise_for_status().json()["access_token"])


def test_a_registration_with_dj_rest_auth(site: Site, key: str) -> None:
    """Without protection there are two accounts for one address, because none of them is verified yet."""
    address = f"{key}@shop.example"
    with site.client() as client:
        form = {"email": address, "password1": OLD, "password2": OLD}
        answer = lost_and_repeated(client, "/rest-auth/registration/", form, key)
    assert answer.status_code == 201, answer.text
    site.counted("accounts of one registration", site.project.count("auth_user", "email = %s", address), 1, 2)


def test_a_registration_with_djoser(site: Site, key: str) -> None:
    """Without protection the owner of the new account is told that the name is taken."""
    with site.client() as client:
        answer = lost_and_repeated(client, "/djoser/users/", {"username": key, "password": OLD}, key)
    assert site.project.count("auth_user", "username = %s", key) == 1
    site.counted("answer to the repeated registration", answer.status_code, 201, 400)


def test_two_applications_of_one_user(site: Site, key: str) -> None:
    """Both send one key. Without the application in the scope, the second gets the first one's answer."""
    with site.client() as client:
        registered(client, key)
        answers = [
            send(client, "/orders/", {}, key, token_of(client, key, application)).json()["order"]
            for application in ("phone", "browser")
        ]
    orders = site.project.sql("SELECT reference FROM shopapp_order WHERE reference LIKE %s ORDER BY id", f"{key}%")
    assert {answer for (answer,) in orders} == set(answers)
    site.counted("orders of two applications", len(orders), 2, 1)


@pytest.mark.parametrize(("path", "form", "status"), [DJ_REST_AUTH, DJOSER])
def test_a_password_change(site: Site, path: str, form: Any, status: int, key: str) -> None:
    """Without protection the user is told that the change has failed, and no longer knows the password."""
    with site.client() as client:
        registered(client, key)
        token = token_of(client, key, "phone")
        answer = lost_and_repeated(client, path, form, f"{key}-2", token)
        token_of(client, key, "browser", NEW)
        site.counted(f"answer to the repeated {path}", answer.status_code, status, 400)

        client.post("/o/revoke_token/", data={"client_id": "phone", "token": token}).raise_for_status()
        assert send(client, path, form, f"{key}-2", token).status_code == 401  # a replay asks for a valid token, too
