"""The rules of an advisory lock that a server of the test suite does not meet."""

from __future__ import annotations

import pytest

from dislock.errors import DatabaseUnavailableError
from dislock.protocol.advisory import AdvisoryAcquisition
from dislock.protocol.advisory_statements import Begin, Outlast
from dislock.protocol.plan import AdvisoryPlan, Senses
from dislock.protocol.steps import Close, Done
from tests.unit.protocol.test_acquisition import Script, plan, rows


def test_no_lock_is_taken_on_a_standby_where_it_excludes_nobody() -> None:
    asked = plan(advisory=AdvisoryPlan(7, "k"))
    script = Script(asked, rows(Done(), Done(((True, 6),))))
    script.protocol = AdvisoryAcquisition(asked, Senses(lambda: script.now, lambda: 0.0, lambda: 0.5, script.report))
    with pytest.raises(DatabaseUnavailableError, match="standby"):
        script.run(script.protocol.acquire())
    assert script.statements == [Begin(), Outlast()]
    assert isinstance(script.steps[-1], Close)
