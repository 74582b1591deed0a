//! The figures of the published comparisons, shown beside ours. They come from other machines and
//! versions: only their ratios between gateways are comparable.

use serde::Serialize;

/// One published line.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figure {
    /// Its number in the table of published scenarios.
    pub number: &'static str,
    /// Our scenario that repeats it.
    pub scenario: &'static str,
    pub who: &'static str,
    pub per_second: f64,
    pub mean_ms: Option<f64>,
    pub remark: &'static str,
}

/// The sources of the figures.
pub const SOURCES: &[(&str, &str)] = &[
    (
        "B1",
        "Apache APISIX v.s Envoy: Which Has the Better Performance? (2021; APISIX 1.5, Envoy 1.14, 8 vCPU)",
    ),
    ("B2", "Envoy vs Nginx: HTTP/1.1 Reverse Proxy Performance (2018; containers)"),
    ("B3 to B6", "Open source API gateways compared: APISIX 3.0 and Kong 3.0 (2022; one worker, wrk2)"),
    ("B7, B8", "Apache APISIX on AWS Graviton3 (2022; APISIX 2.14.1, one worker)"),
    ("B9, B10", "Microservice Gateway Comparison (4 cores, 4 GB, Ubuntu 18)"),
];

const fn figure(
    number: &'static str,
    scenario: &'static str,
    who: &'static str,
    per_second: f64,
    mean_ms: f64,
    remark: &'static str,
) -> Figure {
    let mean_ms = if mean_ms > 0.0 { Some(mean_ms) } else { None };
    Figure { number, scenario, who, per_second, mean_ms, remark }
}

pub const FIGURES: &[Figure] = &[
    figure("B1", "plain-chunked-4000", "APISIX 1.5, 1 worker", 18_608.4, 0.96, ""),
    figure("B1", "plain-chunked-4000", "Envoy 1.14, 1 worker", 15_625.56, 1.02, ""),
    figure("B1", "two-workers", "APISIX 1.5, 2 workers", 34_975.8, 1.01, ""),
    figure("B1", "two-workers", "Envoy 1.14, 2 workers", 29_058.135, 1.09, ""),
    figure("B1", "three-workers", "APISIX 1.5, 3 workers", 52_334.8, 1.02, ""),
    figure("B1", "three-workers", "Envoy 1.14, 3 workers", 42_561.125, 1.12, ""),
    figure("B2", "ten-connections", "Envoy", 4_305.17, 2.45, "43,501 requests, 46.58 ms at most"),
    figure(
        "B2",
        "ten-connections",
        "nginx",
        6_271.63,
        1.65,
        "63,373 requests in 51.37 MB, 850 bytes each: it probably served its own welcome page and never proxied",
    ),
    figure("B3", "plain-chunked-4000", "APISIX 3.0", 14_104.0, 0.0, ""),
    figure("B3", "plain-chunked-4000", "Kong 3.0", 9_857.0, 0.0, ""),
    figure("B4", "rate-limit", "APISIX 3.0", 9_154.0, 0.0, ""),
    figure("B4", "rate-limit", "Kong 3.0", 4_810.0, 0.0, ""),
    figure("B5", "rate-limit-key-auth", "APISIX 3.0", 8_933.0, 0.0, ""),
    figure("B5", "rate-limit-key-auth", "Kong 3.0", 3_977.0, 0.0, ""),
    figure("B6", "5k-routes", "APISIX 3.0", 13_787.0, 0.0, ""),
    figure("B6", "5k-routes", "Kong 3.0", 9_840.0, 0.0, ""),
    figure("B7", "sixteen-connections", "APISIX 2.14.1, Graviton2", 13_000.0, 1.11, ""),
    figure("B7", "sixteen-connections", "APISIX 2.14.1, Graviton3", 23_000.0, 0.68, ""),
    figure("B8", "rate-limit-prometheus", "APISIX 2.14.1, Graviton2", 11_000.0, 1.39, ""),
    figure("B8", "rate-limit-prometheus", "APISIX 2.14.1, Graviton3", 18_000.0, 0.88, ""),
    figure("B9", "gateways-wrk", "direct", 22_433.0, 13.25, ""),
    figure(
        "B9",
        "gateways-wrk",
        "nginx",
        12_507.0,
        75.43,
        "200 connections at that rate are 16 ms each: the mean is dominated by a few outliers",
    ),
    figure("B9", "gateways-wrk", "Zuul 1", 6_517.0, 105.06, "with 3 or 4 time-outs"),
    figure("B9", "gateways-wrk", "Spring Cloud Gateway", 9_228.0, 21.83, ""),
    figure("B9", "gateways-wrk", "Linkerd", 9_999.0, 20.35, ""),
    figure("B10", "gateways-ab", "direct", 18_195.0, 11.0, "2.748 s"),
    figure(
        "B10",
        "gateways-ab",
        "nginx",
        9_958.0,
        20.0,
        "5.021 s; the printed rate is garbled, this is 50,000 / 5.021",
    ),
    figure("B10", "gateways-ab", "Zuul 1", 6_360.0, 31.0, "7.862 s"),
    figure("B10", "gateways-ab", "Spring Cloud Gateway", 7_394.0, 27.0, "6.762 s"),
    figure("B10", "gateways-ab", "Linkerd", 7_171.0, 28.0, "6.972 s"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario;

    #[test]
    fn every_figure_has_a_scenario() {
        for figure in FIGURES {
            let found = scenario::find(figure.scenario).unwrap();
            assert_eq!(found.id, figure.scenario);
            assert!(found.also.iter().any(|also| also.starts_with(figure.number)), "{}", figure.number);
        }
    }
}
