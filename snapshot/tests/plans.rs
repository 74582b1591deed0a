//! Resources in, printed plans out.
//!
//! Each `plans/*.yaml` holds one or more whole configurations, one after another, separated by
//! lines `=== what happens`; lines `# host = address …` set the addresses of names. The file of the
//! same name with `.txt` holds the expected text. To rewrite the expected texts after reviewing the
//! difference: `BLESS=1 cargo test -p snapshot plans`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use crate::support::{self, Table, compiler, desired, difference, print};
use model::{Desired, Kind};
use snapshot::{Plan, Touched};

fn names(text: &str) -> Table {
    let pairs = text.lines().filter_map(|line| line.strip_prefix("# ")?.split_once(" = "));
    Table(
        pairs
            .map(|(host, addresses)| {
                let addresses = addresses.split(' ').map(|address| address.parse().expect("an address"));
                (host.to_owned(), addresses.collect())
            })
            .collect(),
    )
}

fn run(text: &str) -> String {
    let mut compiler = compiler();
    let mut out = String::new();
    let mut before = (Desired::default(), Table::default(), Vec::<Arc<Plan>>::new());
    let first = format!("=== at first\n{text}");
    for (at, stage) in first.split("=== ").skip(1).enumerate() {
        let (title, text) = stage.split_once('\n').expect("a configuration");
        let (mut now, names) = (desired(text), names(text));
        let mut touched = difference(&before.0, &mut now);
        let hosts = names.0.keys().chain(before.1.0.keys());
        let changed: BTreeSet<String> =
            hosts.filter(|host| names.0.get(*host) != before.1.0.get(*host)).cloned().collect();
        touched.hosts = changed;
        let compiled = compiler.compile(&now, &touched, &names, at as u64);

        let fresh = compiler_of(&now, &names);
        let router = &compiled.snapshot.router;
        let plans: Vec<Arc<Plan>> =
            now.of(Kind::Route).filter_map(|entry| Some(router.plan(&entry.key.id)?.clone())).collect();
        let made: Vec<&str> = plans
            .iter()
            .filter(|plan| !before.2.iter().any(|old| Arc::ptr_eq(old, plan)))
            .map(|plan| &*plan.info.id)
            .collect();
        let _ = writeln!(out, "=== {title}\nmade: {}", made.join(" "));
        let text = print(&compiled, &now);
        if !compiled.rejected.iter().any(support::depends_on_history) {
            assert_eq!(text, fresh, "{title}: the same compiled at once");
        }
        out.push_str(&text);
        before = (now, names, plans);
    }
    out
}

fn compiler_of(desired: &Desired, names: &Table) -> String {
    print(&compiler().compile(desired, &Touched::all(), names, 0), desired)
}

#[test]
fn plans_are_as_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans");
    for case in support::cases(&folder) {
        let out = run(&std::fs::read_to_string(&case).expect("a case"));
        support::compare(&case.with_extension("txt"), &out);
    }
}
