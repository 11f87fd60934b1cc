//! As designed, no state breaks a promise; and what the promises are about does happen.

use lock_ext_model::{Promise, Protocol, Report, SIGHTS};

fn explore() -> Vec<(&'static str, Report)> {
    let designed = Protocol::designed();
    [
        (
            "four sessions on a server that does not fail",
            Protocol { sessions: 4, crashes: false, promotions: 0, ..designed.clone() },
        ),
        (
            "three sessions on a server that crashes",
            Protocol { sessions: 3, promotions: 0, tokens: 2, numbers: 3, ..designed.clone() },
        ),
        (
            "two sessions, crashes, a fail-over that loses up to three records",
            Protocol { tokens: 2, numbers: 3, wal: 3, ..designed.clone() },
        ),
        (
            "two sessions, and a second fail-over to a standby that does not know of the first",
            Protocol {
                tokens: 2,
                numbers: 2,
                wal: 2,
                crashes: false,
                promotions: 2,
                forgotten_standby: true,
                ..designed
            },
        ),
    ]
    .map(|(what, protocol)| {
        let report = Report::of(&protocol);
        println!("{what}: {report}");
        (what, report)
    })
    .into()
}

#[test]
fn no_promise_is_broken_and_everything_happens() {
    let reports = explore();
    for (what, report) in &reports {
        assert!(report.broken.is_empty(), "{what}: {report}");
    }
    // An exploration that never got anywhere would break nothing either.
    for (sight, _) in SIGHTS {
        assert!(reports.iter().any(|(_, report)| report.seen.contains(&sight)), "never: {sight}");
    }
    let (_, first) = &reports[0];
    assert!(first.seen.len() >= 10, "without failures only {:?}", first.seen);
}

/// What is not promised: nothing in a standby tells that two promotions passed it by, so its epoch is one that others have left. The clock
/// keeps its tokens apart from theirs, but does not bring them above. `lease_raise_token_floor` does, or a common archive of timelines.
#[test]
fn a_standby_that_two_promotions_passed_by_tells_lower_tokens_but_none_twice() {
    let protocol = Protocol {
        sessions: 1,
        tokens: 2,
        numbers: 2,
        wal: 2,
        prepares: false,
        crashes: false,
        promotions: 3,
        forgotten_standby: true,
        ..Protocol::designed()
    };
    let report = Report::of(&protocol);
    println!("a standby that two promotions passed by: {report}");
    let broken: Vec<Promise> = report.broken.iter().map(|(promise, _)| *promise).collect();
    assert_eq!(broken, [Promise::TokensRise]);
}
