"""Who enters a job, with which slots; and who does not, with a line that says what to do."""

from dataclasses import replace
from pathlib import Path

import pytest

from atoll_operator.machines.bundle import Token, hash_of
from atoll_operator.machines.server.register import (
    Book,
    EntryRequest,
    Granted,
    OpenSlots,
    Register,
    enter,
    free_places,
    revoke,
    with_token,
)
from atoll_protos.errors import SpecError

NOW = 1000.0
SECRET = "a secret"
OPEN = OpenSlots(slots={"us": ["us-0", "us-1"], "eu": ["eu-0"]}, folder="runs/tiny")
GRANTED = Granted(name="abc", secret_hash=hash_of(SECRET), until=2000)
ASKED = EntryRequest(
    key_digest="mine", token="abc", secret=SECRET, region="us", name="house", learners=1
)


def entered(register: Register, **changed: object) -> Register:
    """With a key of its own, unless one is given."""
    own = {"key_digest": f"{len(register.machines)} of {len(register.former)}", **changed}
    return enter(register, replace(ASKED, **own), OPEN, NOW)[0]  # type: ignore[arg-type]


def slots(register: Register) -> dict[str, list[str]]:
    return {machine.name: [*machine.slots] for machine in register.machines}


def test_each_machine_has_free_slots_of_its_region_and_a_name_of_its_own() -> None:
    register = Register(tokens=(GRANTED,))
    for region in ("us", "us", "eu"):
        register = entered(register, region=region)
    assert slots(register) == {"house": ["us-0"], "house-2": ["us-1"], "house-3": ["eu-0"]}


def test_a_revoked_machine_gives_its_slots_back_and_nobody_gets_its_name() -> None:
    register = revoke(entered(Register(tokens=(GRANTED,)), learners=2), "house")
    assert slots(register) == {}
    assert slots(entered(register)) == {"house-2": ["us-0"]}
    with pytest.raises(SpecError, match="machine house: is not one of this job: it was revoked"):
        entered(register, key_digest=register.former[0].key_digest)


def test_a_token_is_for_as_many_machines_as_it_says() -> None:
    register = entered(Register(tokens=(replace(GRANTED, uses=1),)))
    with pytest.raises(SpecError, match="abc is used up"):
        entered(register)


def test_the_region_is_that_of_the_token_or_the_only_one() -> None:
    of_region = Register(tokens=(replace(GRANTED, region="eu"),))
    assert slots(entered(of_region, region="")) == {"house": ["eu-0"]}
    only = OpenSlots(slots={"eu": ["eu-0"]}, folder="")
    asked = replace(ASKED, region="")
    assert enter(Register(tokens=(GRANTED,)), asked, only, NOW)[1].region == "eu"


@pytest.mark.parametrize(
    ("granted", "asked", "words"),
    [
        (GRANTED, {"token": "xyz"}, "xyz is not a token of this job"),
        (GRANTED, {"secret": "another"}, "abc is not a token of this job"),
        (replace(GRANTED, until=1000), {}, "abc has expired"),
        (replace(GRANTED, region="eu"), {}, "is us, and the token is for eu"),
        (GRANTED, {"region": ""}, "the job has us, eu"),
        (GRANTED, {"region": "mars"}, "mars is no region"),
        (
            GRANTED,
            {"learners": 3},
            r"3 wanted, and 2 of the 2 .*atoll edit runs/tiny --learners us=3",
        ),
    ],
)
def test_what_is_refused_is_said_in_one_line(
    granted: Granted, asked: dict[str, object], words: str
) -> None:
    with pytest.raises(SpecError, match=words) as refused:
        entered(Register(tokens=(granted,)), **asked)
    assert "\n" not in str(refused.value)


def test_a_key_that_is_known_has_the_same_answer_and_needs_no_token() -> None:
    register = entered(Register(tokens=(replace(GRANTED, uses=1),)), key_digest="mine")
    again = replace(ASKED, token="", secret="", region="eu", learners=9)
    assert enter(register, again, OPEN, 10 * NOW) == (register, register.machines[0])
    with pytest.raises(SpecError, match="is not one of this job"):
        enter(register, replace(again, key_digest="other"), OPEN, NOW)


def test_as_many_machines_find_a_slot_as_there_are_free_hosts_of_learners() -> None:
    register = entered(Register(tokens=(GRANTED,)), learners=2)
    assert free_places(register, OPEN) == 1
    assert free_places(register, replace(OPEN, slots={"us": ["us-0"]})) == 0
    register = entered(Register(tokens=(GRANTED,)), host=1, **TWO_HOSTS)
    assert free_places(register, replace(OPEN, hosts=2)) == 5


def test_tokens_that_are_past_are_forgotten_and_one_can_be_taken_back() -> None:
    past, other = replace(GRANTED, name="past", until=1000), replace(GRANTED, name="new")
    register = with_token(Register(tokens=(past, GRANTED)), other, NOW)
    assert register.tokens == (GRANTED, other)
    assert revoke(register, "abc").tokens == (other,)
    with pytest.raises(SpecError, match="use one of abc, new"):
        revoke(register, "nobody")


def test_the_file_has_no_secret_and_is_for_its_user_alone(tmp_path: Path) -> None:
    token = Token.new("0" * 64)
    granted = replace(GRANTED, name=token.name, secret_hash=hash_of(token.secret))
    Book(tmp_path).change(lambda register: (with_token(register, granted, NOW), None))
    file = tmp_path / "register.json"
    assert Book(tmp_path).read().tokens == (granted,)
    assert token.secret not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_token_is_one_word_and_nothing_shorter() -> None:
    token = Token.new("0a" * 32)
    assert Token.parse(f" {token}\n") == token
    assert token.secret not in repr(token)
    for text in ("", token.name, f"{token}0", f"{token.name}.{token.secret}"):
        with pytest.raises(SpecError, match="is not a whole token"):
            Token.parse(text)


TWO_HOSTS = {"hosts": 2, "region": "us"}


def test_hosts_of_one_learner_share_its_slot_and_come_in_any_order() -> None:
    register = entered(Register(tokens=(GRANTED,)), host=1, **TWO_HOSTS)
    register = entered(register, host=0, **TWO_HOSTS)
    register = entered(register, host=0, **TWO_HOSTS)
    assert [(each.slots, each.host) for each in register.machines] == [
        (("us-0",), 1),
        (("us-0",), 0),
        (("us-1",), 0),
    ]
    assert register.machines[0].shown == "us-0 host 1 of 2"
    with pytest.raises(SpecError, match=r"no learner lacks host 0 of 2 \(house has us-0 host 1"):
        entered(register, host=0, **TWO_HOSTS)
    revoked = revoke(register, "house")
    assert entered(revoked, host=1, slot="us-0", **TWO_HOSTS).machines[-1].slots == ("us-0",)


def test_where_two_learners_lack_a_host_a_person_says_which_is_meant() -> None:
    register = Register(tokens=(GRANTED,))
    for slot in ("us-0", "us-1"):
        register = entered(register, host=0, slot=slot, **TWO_HOSTS)
    words = (
        r"--slot: is not given, and several learners lack host 1: us-0 \(house\), us-1 \(house-2"
    )
    with pytest.raises(SpecError, match=words):
        entered(register, host=1, **TWO_HOSTS)
    assert entered(register, host=1, slot="us-1", **TWO_HOSTS).machines[-1].slots == ("us-1",)
    with pytest.raises(SpecError, match="mars-0 is no slot here"):
        entered(register, host=1, slot="mars-0", **TWO_HOSTS)


def test_a_slot_of_one_machine_is_not_that_of_several_hosts_too() -> None:
    register = entered(Register(tokens=(GRANTED,)))
    register = entered(register, host=0, **TWO_HOSTS)
    assert slots(register) == {"house": ["us-0"], "house-2": ["us-1"]}
    with pytest.raises(SpecError, match="1 wanted, and 0 of the 2"):
        entered(register)
    with pytest.raises(SpecError, match="no learner lacks host 1 of 3"):
        entered(register, host=1, hosts=3, region="us")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"hosts": 2}, "--host: is not given, and learners have 2 hosts"),
        ({"hosts": 2, "host": 2}, "--host: is 2, and its learner has 2"),
        ({"host": 1}, "--host: is 1, and its learner has 1; leave it out, or give --hosts"),
        ({"hosts": 2, "host": 0, "learners": 2}, "--learners: is 2, and each learner has 2 hosts"),
        ({"hosts": 65, "host": 0}, "--hosts: is 65; use at most 64"),
        ({"slot": "us-1"}, "--slot: is for a learner of several hosts"),
    ],
)
def test_what_a_host_asks_for_has_to_fit(asked: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        entered(Register(tokens=(GRANTED,)), **asked)


def test_the_job_says_how_many_hosts_a_learner_has_unless_its_machines_do() -> None:
    of_job, tokens = replace(OPEN, hosts=2), Register(tokens=(GRANTED,))
    for asked, expected in (({"host": 1}, (1, 2)), ({"hosts": 1}, (0, 1))):
        changed = replace(ASKED, **asked)  # type: ignore[arg-type]
        machine = enter(tokens, changed, of_job, NOW)[1]
        assert (machine.host, machine.hosts) == expected
