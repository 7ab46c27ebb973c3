"""The authority of a job, its leaves, and when each is made again."""

import base64
import dataclasses
import itertools

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atoll_operator.authority import job_authority
from atoll_operator.authority.job_authority import (
    Authorities,
    due_at,
    issue,
    make_key,
    renewal,
    request_for,
    sign,
    turned,
)
from atoll_protos.errors import SpecError
from atoll_protos.network.credentials import Credentials, JobIdentity, Role, identity_of
from unit.certificate_values import DAY, HOUR, NOW, OWNER, authorities, identity, leaf

YEAR = job_authority.AUTHORITY_DAYS * DAY


def parsed(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def names_of(credentials: Credentials) -> x509.SubjectAlternativeName:
    extensions = parsed(credentials.certificate).extensions
    return extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def usages_of(credentials: Credentials) -> set[x509.ObjectIdentifier]:
    extensions = parsed(credentials.certificate).extensions
    return {*extensions.get_extension_for_class(x509.ExtendedKeyUsage).value}


@pytest.mark.parametrize("role", Role)
def test_a_leaf_is_good_for_its_identity_and_nobody_elses(role: Role) -> None:
    made = leaf(authorities(), identity(role))
    assert made.check(NOW) == identity(role)
    uris = names_of(made).get_values_for_type(x509.UniformResourceIdentifier)
    assert uris == [identity(role).uri]


def test_shards_alone_can_serve_under_the_name_of_their_job() -> None:
    for role in Role:
        made = leaf(authorities(), identity(role))
        names = [OWNER.server_name] if role is Role.SHARD else []
        assert names_of(made).get_values_for_type(x509.DNSName) == names
        serves = ExtendedKeyUsageOID.SERVER_AUTH in usages_of(made)
        assert serves == (role is Role.SHARD)
        assert ExtendedKeyUsageOID.CLIENT_AUTH in usages_of(made)


def test_a_request_is_signed_as_a_leaf_of_the_key_that_its_maker_keeps() -> None:
    issuers, here = authorities(), dataclasses.replace(identity(), machine="ws-3")
    key = make_key()
    request = request_for(key)
    signed = Credentials(sign(issuers, here, request, NOW, DAY), key, issuers.bundle)
    assert signed.check(NOW) == here
    made = issue(issuers, here, NOW, DAY)
    assert signed.not_after == made.not_after == NOW + DAY
    assert usages_of(signed) == usages_of(made)
    assert names_of(signed) == names_of(made)


def test_nothing_of_a_request_counts_but_its_key() -> None:
    """Who asks for a certificate does not choose whose it is, nor what it is good for."""
    key = ec.generate_private_key(ec.SECP256R1())
    shard = x509.UniformResourceIdentifier(identity(Role.SHARD).uri)
    asked = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shard")]))
        .add_extension(x509.SubjectAlternativeName([shard]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    request = asked.public_bytes(serialization.Encoding.PEM)
    found = parsed(sign(authorities(), identity(), request, NOW))
    assert identity_of(found) == identity()
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert "shard" not in found.subject.rfc4514_string()


def test_a_request_is_refused_unless_its_maker_holds_a_key_of_our_kind() -> None:
    def request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
        asked = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        return asked.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)

    def refused(der: bytes) -> str:
        with pytest.raises(SpecError) as refusal:
            sign(authorities(), identity(), pem(der), NOW)
        return str(refusal.value)

    def pem(der: bytes) -> bytes:
        body = base64.encodebytes(der)
        return b"-----BEGIN CERTIFICATE REQUEST-----\n%b-----END CERTIFICATE REQUEST-----\n" % body

    ours, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    point = [
        each.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        for each in (ours, other)
    ]
    sign(authorities(), identity(), pem(request(ours)), NOW)
    assert "private half" in refused(request(ours).replace(point[0], point[1]))
    assert "P-256" in refused(request(ec.generate_private_key(ec.SECP384R1())))
    assert "P-256" in refused(request(rsa.generate_private_key(65_537, 2_048)))
    assert refused(b"").startswith("request: cannot be signed: ")
    with pytest.raises(SpecError, match=r"^request: cannot be signed: "):
        sign(authorities(), identity(), leaf(authorities()).certificate, NOW)


def test_a_leaf_cannot_issue_others_and_an_authority_only_leaves() -> None:
    issuers = authorities()
    ours, above = parsed(leaf(issuers).certificate), parsed(issuers.signer.certificate)
    limits = [
        each.extensions.get_extension_for_class(x509.BasicConstraints) for each in (ours, above)
    ]
    assert [(each.critical, each.value.ca, each.value.path_length) for each in limits] == [
        (True, False, None),
        (True, True, 0),
    ]


def test_a_certificate_begins_an_hour_back_for_clocks_that_lag() -> None:
    made = leaf(authorities())
    assert made.fault(NOW - HOUR + 1) is None
    fault = made.fault(NOW - HOUR - 1)
    assert fault is not None
    assert fault.heals


def test_a_leaf_never_outlives_its_authority() -> None:
    issuers = authorities()
    late = leaf(issuers, now=NOW + YEAR - DAY)
    assert late.not_after == parsed(issuers.signer.certificate).not_valid_after_utc.timestamp()


@pytest.mark.parametrize("life", [30 * DAY, 9.0])
def test_a_leaf_is_due_at_two_thirds_of_its_life(life: float) -> None:
    issuers = authorities()
    made = leaf(issuers, life=life)
    assert due_at(made.certificate) == NOW + life * 2 / 3
    assert not renewal(issuers, made, identity(), NOW + life * 2 / 3 - 1)
    assert "two thirds" in renewal(issuers, made, identity(), NOW + life * 2 / 3)


def test_a_leaf_that_is_not_the_one_that_is_needed_is_issued_again() -> None:
    issuers = authorities()
    for other, said in (
        (leaf(issuers, identity(region="eu")), "region eu"),
        (Credentials(b"", b"", b""), "tls.crt is empty"),
        (leaf(authorities()), "another authority"),
    ):
        assert said in renewal(issuers, other, identity(), NOW)


def test_an_authority_is_replaced_while_every_peer_believes_both() -> None:
    """Whatever two processes hold, from before or after a step: each believes the other."""
    first = authorities()
    held = [leaf(first)]
    states: list[tuple[float, Authorities]] = [(NOW, first)]
    for share in (0.5, 2 / 3, 0.7, 5 / 6, 0.9):
        now = NOW + YEAR * share
        changed, said = turned(states[-1][1], OWNER, now)
        assert bool(said) == (changed != states[-1][1])
        states.append((now, changed))
    assert [bool(s.successor) for _, s in states] == [False, False, True, True, False, False]
    assert [bool(s.former) for _, s in states] == [False] * 4 + [True] * 2
    for (_, before), (now, after) in itertools.pairwise(states):
        held = [issue(before, identity(), now - DAY), issue(after, identity(), now)]
        for mine in held:
            for theirs in held:
                crossed = Credentials(mine.certificate, mine.key, theirs.authority)
                assert crossed.fault(now) is None


def test_leaves_are_renewed_with_each_change_of_the_authorities() -> None:
    first = authorities()
    with_successor, _ = turned(first, OWNER, NOW + YEAR * 2 / 3)
    switched, _ = turned(with_successor, OWNER, NOW + YEAR * 5 / 6)
    now = NOW + YEAR * 5 / 6
    old = issue(first, identity(), now - DAY)
    assert "are believed" in renewal(with_successor, old, identity(), now)
    new = issue(with_successor, identity(), now - DAY)
    assert not renewal(with_successor, new, identity(), now)
    assert "another authority signs" in renewal(switched, new, identity(), now)


def test_a_former_authority_is_forgotten_once_it_has_expired() -> None:
    first = authorities()
    state, _ = turned(turned(first, OWNER, NOW + YEAR * 2 / 3)[0], OWNER, NOW + YEAR * 5 / 6)
    assert first.signer.certificate in state.bundle
    kept, said = turned(state, OWNER, NOW + YEAR - 1)
    assert kept == state
    assert not said
    state, said = turned(state, OWNER, NOW + YEAR)
    assert said
    assert first.signer.certificate not in state.bundle
    assert not state.former


def test_an_authority_that_expired_while_no_operator_ran_is_made_anew() -> None:
    first = authorities()
    state, said = turned(first, OWNER, NOW + YEAR + 1)
    assert "expired" in said
    assert state.signer != first.signer
    assert not state.former


def test_authorities_are_read_back_from_their_secret() -> None:
    first = authorities()
    second, _ = turned(first, OWNER, NOW + YEAR * 2 / 3)
    third, _ = turned(second, OWNER, NOW + YEAR * 5 / 6)
    for state in (first, second, third):
        assert Authorities.from_files(state.to_files()) == state
    assert {*first.to_files()} == {"tls.crt", "tls.key"}


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "next.crt", "next.key", "former.crt"])
@pytest.mark.parametrize("content", [b"", b"x"])
def test_a_damaged_secret_is_named_with_the_remedy(name: str, content: bytes) -> None:
    second, _ = turned(authorities(), OWNER, NOW + YEAR * 2 / 3)
    files = second.to_files() | {"former.crt": authorities().signer.certificate}
    if content or name != "former.crt":
        with pytest.raises(SpecError, match="delete the Secret: a new authority is made"):
            Authorities.from_files(files | {name: content})


def test_the_key_of_another_authority_is_refused() -> None:
    files = authorities().to_files() | {"tls.key": authorities().signer.key}
    with pytest.raises(SpecError, match=r"^tls.crt: the authority cannot be used: the key"):
        Authorities.from_files(files)


def test_a_long_name_of_a_job_fits() -> None:
    owner = JobIdentity(namespace="n" * 63, job="j" * 63, uid="u")
    made = leaf(job_authority.make_authorities(owner, NOW), identity(owner=owner))
    assert made.check(NOW).owner == owner


def test_a_certificate_that_cannot_sign_is_refused_as_an_authority() -> None:
    made = leaf(authorities(), identity(Role.SHARD))
    files = {"tls.crt": made.certificate, "tls.key": made.key}
    with pytest.raises(SpecError, match=r"tls\.crt: may not sign certificates"):
        Authorities.from_issuer(files, b"", NOW)
    signer = authorities().signer
    files = {"tls.crt": signer.certificate, "tls.key": signer.key}
    assert Authorities.from_issuer(files, b"spoilt", NOW).bundle == signer.certificate
    with pytest.raises(SpecError, match=r"tls\.crt: expired at"):
        Authorities.from_issuer(files, b"", NOW + YEAR)
