//! The behaviour that every [`Limiter`] has, as data.

use super::{Decision, Hit, Limiter, Rule, Unavailable};
use crate::counters::Pace;
use crate::step::LocalFuture;
use crate::world::World;

/// One rule and the hits on it, in order.
#[derive(Debug)]
pub struct Case {
    pub name: &'static str,
    pub rule: Rule,
    pub steps: &'static [Step],
}

#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// Requests with this key and cost are let in, one after the other, and leave this much each.
    In(&'static str, u32, &'static [u64]),
    /// One request is rejected.
    Out(&'static str, u32),
    /// Requests are let in with these delays in milliseconds.
    Delayed(&'static str, &'static [u64]),
    /// The request that has been in for the longest time leaves.
    Leave,
    /// Time passes, in milliseconds.
    Pass(u64),
    /// Time passes until it is a multiple of these milliseconds.
    Edge(u64),
}

use Step::{Delayed, Edge, In, Leave, Out, Pass};

/// Times are in whole seconds where a server counts in seconds.
pub const CASES: &[Case] = &[
    Case {
        name: "a window lets its limit in, for each key by itself",
        rule: Rule::Fixed { limit: 3, window_ms: 60_000 },
        steps: &[
            In("a", 1, &[2, 1, 0]),
            Out("a", 1),
            Out("a", 1),
            In("b", 1, &[2]),
            Out("a", 1),
            In("b", 2, &[0]),
        ],
    },
    Case {
        name: "a window ends",
        rule: Rule::Fixed { limit: 2, window_ms: 1_000 },
        steps: &[In("a", 1, &[1, 0]), Out("a", 1), Pass(1_100), In("a", 1, &[1, 0]), Out("a", 1)],
    },
    Case {
        name: "keys are any bytes",
        rule: Rule::Fixed { limit: 1, window_ms: 60_000 },
        steps: &[
            In("", 1, &[0]),
            In("a b\r\n$1", 1, &[0]),
            In("{a}", 1, &[0]),
            In("{a}b", 1, &[0]),
            In("ä:1", 1, &[0]),
            Out("a b\r\n$1", 1),
            Out("", 1),
        ],
    },
    Case {
        name: "limits beyond 32 bits",
        rule: Rule::Fixed { limit: 2_000_000_000_000, window_ms: 60_000 },
        steps: &[In("a", 1, &[1_999_999_999_999]), In("a", 4_000_000_000, &[1_995_999_999_999])],
    },
    Case {
        name: "a sliding window remembers the previous one",
        rule: Rule::Sliding { limit: 10, window_ms: 10_000 },
        steps: &[
            Edge(10_000),
            In("a", 1, &[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
            Out("a", 1),
            In("b", 1, &[9]),
            // Three quarters of the previous window's ten still count.
            Pass(12_500),
            In("a", 1, &[1, 0]),
            Pass(20_000),
            In("a", 1, &[9]),
        ],
    },
    Case {
        name: "requests drain at their rate and wait within the burst",
        rule: Rule::Pace(Pace::of(4.0, 2.0, 250_000, 500_000)),
        steps: &[
            Delayed("a", &[0, 250, 500]),
            Out("a", 1),
            Delayed("b", &[0]),
            Pass(250),
            Delayed("a", &[500]),
            Out("a", 1),
            Pass(60_000),
            Delayed("a", &[0]),
        ],
    },
    Case {
        name: "a limit bounds the requests at once",
        rule: Rule::Concurrent { most: 2, ttl_s: 60 },
        steps: &[
            In("a", 1, &[1, 0]),
            Out("a", 1),
            In("b", 1, &[1]),
            Leave,
            In("a", 1, &[0]),
            Out("a", 1),
            Leave,
        ],
    },
];

/// Runs all cases over a limiter. `pass` lets time pass, for the limiter's clock and for its server's.
///
/// # Errors
/// The first step that has another outcome.
pub async fn run(
    limiter: &dyn Limiter,
    world: &dyn World,
    pass: &dyn Fn(u64) -> LocalFuture<'static, ()>,
) -> Result<(), String> {
    for (number, case) in CASES.iter().enumerate() {
        let mut within = std::collections::VecDeque::new();
        for step in case.steps {
            let hit = async |key: &str, cost: u32| {
                let key = format!("{number}:{key}");
                limiter.take(world, Hit { key: key.as_bytes(), cost, rule: case.rule }).await
            };
            let wrong =
                |got: &Result<Decision, Unavailable>| Err(format!("{}: {step:?}: {got:?}", case.name));
            match *step {
                In(key, cost, remaining) => {
                    for left in remaining {
                        match hit(key, cost).await {
                            Ok(got) if got.allowed && got.remaining == *left => within.extend(got.permit),
                            got => return wrong(&got),
                        }
                    }
                }
                Out(key, cost) => match hit(key, cost).await {
                    Ok(Decision { allowed: false, permit: None, .. }) => {}
                    got => return wrong(&got),
                },
                Delayed(key, delays) => {
                    for delay in delays {
                        match hit(key, 1).await {
                            Ok(got) if got.allowed && got.delay_us == delay * 1000 => {}
                            got => return wrong(&got),
                        }
                    }
                }
                Leave => drop(within.pop_front()),
                Pass(ms) => pass(ms).await,
                Edge(ms) => pass(ms - world.now_ms() % ms).await,
            }
        }
    }
    Ok(())
}
