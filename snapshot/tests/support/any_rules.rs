//! The router: any rules in any order, with rules put in and taken out again, give one answer;
//! what is found covers the path; an exact path is never missed. The first line is the mode and
//! `HOST/PATH`; each other line is `URI [HOST [PRIORITY]]`.

use std::cell::RefCell;
use std::sync::Arc;

use sdk::testing::Probe;
use snapshot::Plan;
use snapshot::router::{Mode, Options, Router, Rule};

pub fn check(input: &str) {
    let mut lines = input.lines();
    let first = lines.next().unwrap_or_default();
    let (mode, request) = first.split_once(' ').unwrap_or(("0", first));
    let mode = match mode {
        "1" => Mode::Uri,
        "2" => Mode::UriWithParameter,
        _ => Mode::HostUri,
    };
    let (host, path) = request.split_at(request.find('/').unwrap_or(request.len()));
    let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_plain(host) || !is_plain(path) || path.contains('?') {
        return;
    }
    let rules: Vec<(Arc<Rule>, Arc<Plan>)> =
        lines.take(24).enumerate().filter_map(|(id, line)| rule(id, line)).collect();

    let answer = find(&router(mode, rules.iter()), host, path);
    let backwards = find(&router(mode, rules.iter().rev()), host, path);
    assert_eq!(answer, backwards, "the order of insertion matters");

    // Half of the rules come and go before all are there.
    let mut changed = router(mode, rules.iter().step_by(2));
    for (rule, _) in rules.iter().step_by(2) {
        changed.remove(&rule.id);
    }
    assert!(changed.is_empty());
    assert_eq!(find(&changed, host, path), None);
    for (rule, plan) in &rules {
        changed.insert(rule.clone(), plan.clone());
    }
    assert_eq!(changed.len(), rules.len());
    assert_eq!(find(&changed, host, path), answer, "removal leaves traces");

    let exact =
        rules.iter().any(|(rule, _)| rule.hosts.is_empty() && *rule.uris[0] == *path && !is_pattern(path));
    assert!(!exact || answer.is_some(), "an exact path was missed");
    if let Some(id) = answer {
        let uri = &rules.iter().find(|(rule, _)| *rule.id == *id).expect("a rule of ours").0.uris[0];
        let literal = uri.find(['*', ':']).unwrap_or(uri.len());
        assert!(path.starts_with(&uri[..literal]) || **uri == *path, "{uri} does not cover {path}");
    }
}

fn is_pattern(path: &str) -> bool {
    path.contains(['*', ':'])
}

fn rule(id: usize, line: &str) -> Option<(Arc<Rule>, Arc<Plan>)> {
    let mut words = line.split(' ');
    let uri = words.next().filter(|uri| uri.starts_with('/'))?;
    let host = words.next().filter(|host| !matches!(*host, "" | "-"));
    let priority = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let id = id.to_string();
    let plan = Plan::new(sdk::RouteInfo::new(&id, Default::default()));
    let rule = Rule {
        id: id.into(),
        code: None,
        uris: [uri.into()].into(),
        hosts: host.map(Into::into).into_iter().collect(),
        methods: 0,
        remote_addrs: Box::default(),
        vars: None,
        priority,
    };
    Some((Arc::new(rule), Arc::new(plan)))
}

fn router<'a>(mode: Mode, rules: impl Iterator<Item = &'a (Arc<Rule>, Arc<Plan>)>) -> Router {
    let mut router = Router::new(mode, Options::default());
    for (rule, plan) in rules {
        router.insert(rule.clone(), plan.clone());
    }
    router
}

thread_local! {
    /// Made once: what an exchange stands in costs more than what is tried here.
    static PROBE: RefCell<Probe> = RefCell::new(Probe::get("/"));
}

fn find(router: &Router, host: &str, path: &str) -> Option<String> {
    PROBE.with_borrow_mut(|probe| {
        probe.ask("GET", path, &[("Host", host)]);
        let mut x = probe.exchange();
        router.find(&mut x).plan().map(|plan| plan.info.id.to_string())
    })
}
