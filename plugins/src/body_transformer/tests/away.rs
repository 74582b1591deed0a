//! Work of more than about a millisecond runs on background threads, with the same outcome.

use super::*;

/// The stage's first step with a request of this body, what comes of it in the end, and how many jobs that took.
fn steps(template: &str, body: &[u8], budget: usize) -> (Step, Step, String, usize) {
    let mut probe = Probe::request("POST", "/?a=b&b=c&n=1", &[("Content-Type", "application/json")]);
    probe.world.budget = sdk::budget::Budget::new(budget);
    let stage = limits::built(json!({"request": {"template": template}}), None);
    let mut x = probe.exchange();
    with_body(&mut x, body);
    let first = stage.rewrite(&mut x);
    let last = if matches!(first, Step::Wait) { now(stage.wait(Phase::Rewrite, &mut x)) } else { Step::Next };
    let body = String::from_utf8_lossy(x.body()).into_owned();
    drop(x);
    (first, last, body, probe.world.jobs.get())
}

#[test]
fn long_work_leaves_the_worker() {
    let text = |length: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(length)).into_bytes();
    let list = |length: usize| format!("[{}0]", "0,".repeat(length)).into_bytes();
    for (template, body, away) in [
        ("{{#a}}", text(65_000), false),
        ("{{#a}}", text(66_000), true),
        ("{{#context}}", list(14_000), false),
        ("{{#context}}", list(15_000), true),
        ("{% for i = 1, 9000 do %}{% end %}", text(1), false),
        ("{% for i = 1, 11000 do %}{% end %}", text(1), true),
    ] {
        let (first, last, _, jobs) = steps(template, &body, 1 << 30);
        assert_eq!(matches!(first, Step::Wait), away, "{template}");
        // One weighs the body, the other runs.
        assert!(
            matches!(last, Step::Next) && jobs == if away { 2 } else { 0 },
            "{template}: {last:?}, {jobs}"
        );
    }
}

/// A template makes names of variables, and its outcome is the same as on a worker.
#[test]
fn variables_are_found_before_the_run() {
    let chain = "{% local n = 'a' for i = 1, 2 do n = _ctx.var['arg_' .. n] end %}{{n}}";
    let made = "{% for _, n in ipairs({'a', 'b', 'none'}) do local v = _ctx.var['arg_' .. n] %}{{v or '-'}}{% end %}{{_ctx.var.arg_n + 1}}";
    let alias = "{% local v = _ctx.var %}{{v.arg_a .. v.arg_b}}";
    let body = |length: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(length)).into_bytes();
    for (template, expected, jobs) in [
        ("{{_ctx.var.arg_a}}{{_ctx.var['arg_b']}}", "bc", 2),
        ("{{context._ctx.var.arg_a}}", "b", 2),
        (alias, "bc", 3),
        (made, "bc-2", 3),
        (chain, "c", 4),
    ] {
        for (length, jobs) in [(1, 0), (70_000, jobs)] {
            let (_, last, made, used) = steps(template, &body(length), 1 << 30);
            assert!(matches!(last, Step::Next), "{template}: {last:?}");
            assert_eq!((&*made, used), (expected, jobs), "{template}");
        }
    }
}

/// Each name follows from the value of the one before.
#[test]
fn runs_have_a_bound() {
    for (deep, fits) in [(15, true), (16, false)] {
        let query: String = (0..deep).map(|at| format!("a{at}=a{}&", at + 1)).collect();
        let template =
            format!("{{% local n = 'a0' for i = 1, {deep} do n = _ctx.var['arg_' .. n] end %}}{{{{n}}}}");
        let stage = limits::built(json!({"request": {"input_format": "plain", "template": template}}), None);
        let mut probe = Probe::request("POST", &format!("/?{query}"), &[]);
        let mut x = probe.exchange();
        with_body(&mut x, &[b'x'; 70_000]);
        match rewrite(&stage, &mut x) {
            Step::Next => assert!(fits && x.body() == format!("a{deep}").as_bytes()),
            Step::Reply(reply) => {
                assert!(!fits && String::from_utf8_lossy(&reply.body).contains("too many variables"))
            }
            step => panic!("{step:?}"),
        }
    }
}

#[test]
fn what_long_work_holds_counts() {
    let body = format!("[{}0]", "0,".repeat(50_000)).into_bytes();
    let vars = "{{_ctx.var.request_body and 1}}";
    for (template, budget, fits) in [
        ("x", 50_000, false),
        ("x", 200_000, false),
        ("x", 10_000_000, true),
        (vars, 150_000, false),
        (vars, 10_000_000, true),
    ] {
        let (first, last, ..) = steps(template, &body, budget);
        assert!(matches!(first, Step::Wait));
        assert_eq!(matches!(last, Step::Next), fits, "{template}, {budget}: {last:?}");
    }
}

#[test]
fn long_responses_leave_the_worker_too() {
    for (body, template, expected) in [
        (format!("{{\"a\":\"{}\"}}", "x".repeat(70_000)), "{{#a}} {{_ctx.var.status}}", Some("70000 200")),
        (format!("{{\"a\":\"{}", "x".repeat(70_000)), "{{#a}}", None),
        ("{}".into(), "{% for i = 1, 1e12 do %}{% end %}", None),
    ] {
        let mut probe = Probe::get("/");
        let config = json!({"response": {"input_format": "json", "template": template}});
        let stage: BodyTransformer = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[]);
        stage.header_filter(&mut x);
        let mut chunk = chunk(body.as_bytes(), true);
        assert!(matches!(stage.body_action(&mut x, &mut chunk), Step::Wait));
        assert!(matches!(now(stage.wait_body(&mut x, &mut chunk)), Step::Next) && !chunk.refused);
        assert_eq!(chunk.data, expected.unwrap_or(&body).as_bytes());
        let counted = chunk.data.capacity();
        assert_eq!(x.world().budget().taken(), counted);
        drop(x);
        let complaints = probe.world.complaints.borrow();
        assert_eq!(complaints.is_empty(), expected.is_some());
        assert_eq!(
            complaints.iter().any(|(_, reason)| *reason == run::TOO_MANY_STEPS),
            template.contains("1e12")
        );
    }
}
