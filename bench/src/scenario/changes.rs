//! Large configurations, and changes of them.

use super::{BASE, Kind, Reference, Scenario};
use crate::gateways::{Gateway, Setup};
use crate::load::{Driver, Front};

const ADMIN: Setup = Setup { admin: true, ..Setup::PLAIN };

/// Routes of several kinds in the store, served by two workers.
const fn routes(routes: usize) -> Setup {
    Setup { mixed: true, routes, workers: 2, ..ADMIN }
}

const CONSUMERS: Setup = Setup { consumers: 100_000, workers: 2, ..ADMIN };
const CERTIFICATES: Setup = Setup { front: Front::Https, certificates: 100_000, workers: 2, ..ADMIN };
const UNDER_LOAD: Setup = Setup { workers: 1, ..routes(50_000) };
const CONSUMERS_UNDER_LOAD: Setup = Setup { workers: 1, ..CONSUMERS };

const fn own(label: &'static str, setup: Setup) -> Reference {
    Reference { label, gateway: Gateway::Sluice, setup, churn: false }
}

const SCALE: Scenario = Scenario { kind: Kind::Scale, peers: &[Gateway::Nginx, Gateway::Envoy], ..BASE };

const CHURN: Scenario = Scenario {
    kind: Kind::Churn { per_second: 50 },
    driver: Driver::Paced { connections: 50, rate: 2_000 },
    peers: &[],
    ..BASE
};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        id: "churn",
        title: "Routes changed 100 times a second under load",
        kind: Kind::Churn { per_second: 100 },
        driver: Driver::Paced { connections: 50, rate: 4_000 },
        setup: ADMIN,
        references: &[own("sluice, no changes", ADMIN)],
        quick: Some(&[]),
        ..CHURN
    },
    Scenario {
        id: "churn-50k-routes",
        title: "50,000 mixed routes, 50 changes a second under load",
        setup: UNDER_LOAD,
        references: &[
            own("sluice, no changes", UNDER_LOAD),
            Reference {
                label: "nginx, a reload a second",
                gateway: Gateway::Nginx,
                setup: UNDER_LOAD,
                churn: true,
            },
            Reference {
                label: "nginx, no changes",
                gateway: Gateway::Nginx,
                setup: UNDER_LOAD,
                churn: false,
            },
            Reference {
                label: "envoy, a file of routes a second",
                gateway: Gateway::Envoy,
                setup: UNDER_LOAD,
                churn: true,
            },
            Reference {
                label: "envoy, no changes",
                gateway: Gateway::Envoy,
                setup: UNDER_LOAD,
                churn: false,
            },
        ],
        ..CHURN
    },
    Scenario {
        id: "churn-100k-consumers",
        title: "100,000 consumers, 50 changes of them a second under load",
        setup: CONSUMERS_UNDER_LOAD,
        references: &[own("sluice, no changes", CONSUMERS_UNDER_LOAD)],
        ..CHURN
    },
    Scenario {
        id: "scale-1k-routes",
        title: "1,000 mixed routes: loading, memory, changes",
        setup: routes(1_000),
        references: &[own("sluice, from a file", Setup { admin: false, ..routes(1_000) })],
        ..SCALE
    },
    Scenario {
        id: "scale-10k-routes",
        title: "10,000 mixed routes: loading, memory, changes",
        setup: routes(10_000),
        references: &[own("sluice, from a file", Setup { admin: false, ..routes(10_000) })],
        ..SCALE
    },
    Scenario {
        id: "scale-100k-routes",
        also: &["scale"],
        title: "100,000 mixed routes: loading, memory, changes",
        setup: routes(100_000),
        references: &[own("sluice, from a file", Setup { admin: false, ..routes(100_000) })],
        ..SCALE
    },
    Scenario {
        id: "scale-100k-consumers",
        title: "100,000 consumers: loading, memory, changes",
        setup: CONSUMERS,
        references: &[own("sluice, from a file", Setup { admin: false, ..CONSUMERS })],
        peers: &[],
        ..SCALE
    },
    Scenario {
        id: "certificates",
        title: "100,000 certificates (ECDSA P-256): loading, memory, changes",
        setup: CERTIFICATES,
        references: &[own("sluice, from a file", Setup { admin: false, ..CERTIFICATES })],
        peers: &[],
        ..SCALE
    },
];
