//! Requests that wait for the answer to another one.

use super::*;

/// Sends a request while another one with the same key is under way, then calls `end` on that. Returns the
/// body that the later one gets, or how it goes on.
fn second(
    config: Value,
    method: &str,
    headers: &[(&str, &str)],
    end: fn(&ProxyCache, &mut Exchange<'_>),
) -> String {
    let mut config = config;
    config["collapse_timeout"] = json!(1000);
    let site = Site::new(config);
    let (mut first, mut second) = (site.probe("GET", "/", &[]), site.probe(method, "/", headers));
    second.world.sleeps_last.set(true);
    let stage: ProxyCache = first.stage(site.config.clone()).unwrap();
    let mut x = first.exchange();
    let mut y = second.exchange();
    assert!(matches!(stage.access(&mut x), Step::Next));
    let step = match stage.access(&mut y) {
        Step::Wait => {
            let mut waiting = Box::pin(stage.wait(Phase::Access, &mut y));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            end(&stage, &mut x);
            match waiting.as_mut().poll(&mut cx) {
                Poll::Ready(step) => step,
                Poll::Pending => return "still waits".into(),
            }
        }
        step => step,
    };
    match step {
        Step::Reply(reply) => String::from_utf8(reply.body.to_vec()).unwrap(),
        Step::Next => "sent".into(),
        step => format!("{step:?}"),
    }
}

fn answered(stage: &ProxyCache, x: &mut Exchange<'_>) {
    respond(x, 200, &[]);
    x.engine_mut().messages.response.framing = Framing::Length(3);
    assert!(matches!(stage.header_action(x), Step::Next));
    stage.body_filter(x, &mut chunk(b"one", true));
}

#[test]
fn a_request_waits_for_the_answer_of_the_first() {
    let with = |end| second(json!({}), "GET", &[], end);
    assert_eq!(with(answered), "one");
    assert_eq!(with(|_, _| {}), "still waits");
    // The head shows that the answer is not stored: nothing waits for the body.
    let private = |stage: &ProxyCache, x: &mut Exchange<'_>| {
        respond(x, 200, &[("Cache-Control", "private")]);
        assert!(matches!(stage.header_action(x), Step::Next));
    };
    assert_eq!(with(private), "sent");
    // The exchange ends without an answer.
    assert_eq!(with(|_, x| x.engine_mut().messages.clear()), "sent");
}

#[test]
fn requests_that_could_not_use_the_answer_do_not_wait() {
    assert_eq!(second(json!({}), "GET", &[("Range", "bytes=0-1")], |_, _| {}), "sent");
    assert_eq!(second(json!({}), "HEAD", &[], |_, _| {}), "sent");
    assert_eq!(
        second(json!({"cache_control": true}), "GET", &[("Cache-Control", "no-cache")], |_, _| {}),
        "sent"
    );
}
