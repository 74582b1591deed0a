//! One step: what it does, and what is expected of it.

use super::{Collected, World, admin};
use crate::case::{Expect, Seen, Step};
use crate::client::{Answer, Call, Client};
use crate::expect;
use crate::fill::Names;
use crate::gateway::KEY;
use crate::http::bytes;
use crate::{client, talk};
use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Between two tries of a step that may need time.
const PAUSE: Duration = Duration::from_millis(20);
/// A program run to its end takes no longer.
const PROGRAM: Duration = Duration::from_secs(600);
/// `within` is never shorter: it waits for what comes later, and on a busy machine that is later.
const WITHIN: Duration = Duration::from_secs(30);
/// Prefix of a script that reports the failed command. On the script's first line, to keep line
/// numbers.
const REPORT_FAILURE: &str = r#"trap 'echo "line $LINENO ended with $?: $BASH_COMMAND" >&2' ERR; "#;

/// Runs a step; with `within`, again and again until it holds.
pub fn run(world: &mut World, step: &Step) -> Result<()> {
    let until = step.within.map(|patience| Instant::now() + patience.max(WITHIN));
    loop {
        let outcome = once(world, step);
        match (&outcome, until) {
            (Err(_), Some(until)) if Instant::now() < until => std::thread::sleep(PAUSE),
            _ => return outcome,
        }
    }
}

/// A line of a script whose failure bash ignores: a negated command before the last one.
fn unseen(script: &str) -> Option<&str> {
    let mut lines = script.trim_end().lines().map(str::trim);
    lines.next_back();
    lines.find(|line| line.starts_with("! "))
}

/// The step in a few words.
pub fn describe(step: &Step) -> String {
    let first =
        |text: &str| text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned();
    if let Some(request) = step.request.as_ref().or(step.admin.as_ref()) {
        return request.clone();
    }
    if let Some(text) = step.raw.as_ref().or(step.shell.as_ref()) {
        return first(text);
    }
    match (&step.sluice, &step.signal, step.kill9, step.start_gateway) {
        (Some(args), ..) => format!("sluice {}", args.join(" ")),
        (_, Some(signal), ..) => format!("signal {signal}"),
        (_, _, true, _) => "kill -9".into(),
        (_, _, _, true) => "start".into(),
        _ if step.talk.is_some() => "talk".into(),
        _ if step.wait_exit => "wait for the end".into(),
        _ => "look".into(),
    }
}

fn once(world: &mut World, step: &Step) -> Result<()> {
    if let Some(pause) = step.sleep {
        std::thread::sleep(pause);
    }
    files(world, step)?;
    if step.start_gateway {
        world.start()?;
    }
    if !step.put.is_empty() {
        admin::put_all(world, &step.put)?;
    }
    if let Some(request) = &step.request {
        requests(world, step, request)?;
    }
    if let Some(request) = &step.admin {
        admin_call(world, step, request)?;
    }
    if let Some(raw) = &step.raw {
        raw_bytes(world, step, raw)?;
    }
    for (name, raw) in &step.raws {
        raw_bytes(world, step, raw).with_context(|| format!("raw {name}"))?;
    }
    if let Some(moves) = &step.talk {
        let connection = client::connect(&world.address(step.to.as_deref())?)?;
        let filled = moves.iter().map(|step| fill_move(&world.names, step)).collect::<Result<Vec<_>>>()?;
        let heard = converse(world, connection.inner(), &filled)?;
        expect::body(&step.expect, &world.names, &heard)?;
    }
    if let Some(script) = &step.shell {
        if let Some(line) = unseen(script) {
            bail!("`{line}` cannot fail: bash passes over it; write `if …; then exit 1; fi`");
        }
        let mut command = Command::new("bash");
        // Every command counts, not only the last one; the one that failed is named.
        command.args(["-e", "-c"]).arg(format!("{REPORT_FAILURE}{}", world.names.fill_shell(script)?));
        program(world, step, command, Some(0))?;
    }
    if let Some(args) = &step.sluice {
        let mut command = Command::new(&world.program);
        for arg in args {
            command.arg(world.names.fill(arg)?);
        }
        program(world, step, command, None)?;
    }
    if let Some(command) = &step.etcd {
        world.etcd.as_mut().context("the case has no etcd")?.command(command)?;
    }
    if let Some(signal) = &step.signal {
        world.gateway.signal(signal)?;
    }
    if step.kill9 {
        ensure!(world.gateway.is_running(), "the gateway is not running");
        world.gateway.kill()?;
        world.client.forget();
    }
    if step.wait_exit {
        let code = world.gateway.wait()?;
        let wanted = step.expect.exit.unwrap_or(0);
        ensure!(code == wanted, "exit code: expected {wanted}, got {code}");
    }
    seen(world, &step.expect)?;
    // A repeated step waits only briefly each time, to leave time for another try.
    log(world, &step.expect, if step.within.is_some() { WITHIN / 10 } else { WITHIN })
}

fn files(world: &World, step: &Step) -> Result<()> {
    for (name, text) in &step.write {
        let path = world.folder.join(world.names.fill(name)?);
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, world.names.fill(text)?)?;
        std::fs::rename(&fresh, &path)?;
    }
    Ok(())
}

fn requests(world: &mut World, step: &Step, request: &str) -> Result<()> {
    let call = build(world, step, request)?;
    let address = world.address(step.to.as_deref())?;
    let repeat = step.repeat.unwrap_or(1);
    let answers = match step.parallel {
        None => (0..repeat).map(|_| world.client.call(&address, &call)).collect::<Result<Vec<_>>>()?,
        Some(threads) => parallel(&address, &call, threads, repeat)?,
    };
    for (number, answer) in (1..).zip(&answers) {
        let checked = expect::answer(&step.expect, &world.names, answer);
        checked.map_err(
            |error| if answers.len() > 1 { error.context(format!("answer {number}")) } else { error },
        )?;
    }
    statuses(&step.expect, &answers)?;
    match answers.last() {
        Some(answer) => save(world, step, answer),
        None => Ok(()),
    }
}

/// Several clients at once, each with its own connection kept over its repetitions.
fn parallel(address: &str, call: &Call, threads: usize, repeat: usize) -> Result<Vec<Answer>> {
    let answers: Collected<Result<Answer>> = Collected::default();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut client = Client::default();
                let call = Call { connection: Some("own".into()), ..call.clone() };
                for _ in 0..repeat {
                    let answer = client.call(address, &call);
                    answers.lock().expect("no holder panics").push(answer);
                }
            });
        }
    });
    let mut answers = answers.lock().expect("no holder panics");
    std::mem::take(&mut *answers).into_iter().collect()
}

fn statuses(expect: &Expect, answers: &[Answer]) -> Result<()> {
    let Some(wanted) = &expect.statuses else { return Ok(()) };
    let mut got = std::collections::BTreeMap::new();
    for answer in answers {
        *got.entry(answer.message.status().to_string()).or_insert(0) += 1;
    }
    let wanted = wanted.iter().map(|(status, count)| (status.clone(), *count)).collect();
    ensure!(got == wanted, "statuses: expected {wanted:?}, got {got:?}");
    Ok(())
}

fn build(world: &World, step: &Step, request: &str) -> Result<Call> {
    let request = world.names.fill(request)?;
    let (method, target) =
        request.split_once(' ').with_context(|| format!("{request:?}: want METHOD TARGET"))?;
    let fill_pairs = |headers: &Option<crate::case::Headers>| {
        let pairs = headers.iter().flat_map(|headers| headers.pairs());
        pairs.map(|(name, value)| Ok((name, world.names.fill(&value)?))).collect::<Result<Vec<_>>>()
    };
    let body = match (&step.body, &step.json, &step.many) {
        (Some(text), _, _) => Some(world.names.fill(text)?.into_bytes()),
        (_, Some(value), _) => Some(world.names.fill_value(value)?.to_string().into_bytes()),
        (_, _, Some(many)) => Some(many.bytes()),
        _ => None,
    };
    let cut = |size: usize| body.iter().flat_map(|body| body.chunks(size)).map(<[u8]>::to_vec).collect();
    let written =
        step.chunks.as_ref().map(|chunks| chunks.iter().map(|chunk| chunk.clone().into_bytes()).collect());
    let chunks = step.chunk_size.map(cut).or(written);
    Ok(Call {
        method: method.into(),
        target: target.into(),
        version: step.version.clone().unwrap_or_else(|| "1.1".into()),
        headers: fill_pairs(&step.headers)?,
        no_host: step.no_host,
        body,
        chunks,
        trailers: fill_pairs(&step.trailers)?,
        expect_continue: step.expect_continue,
        connection: step.connection.clone(),
        watch_close: step.expect.closed,
    })
}

fn admin_call(world: &mut World, step: &Step, request: &str) -> Result<()> {
    let mut call = build(world, step, request)?;
    match step.key.as_deref() {
        Some("") => {}
        Some(key) => call = call.header("X-API-KEY", &world.names.fill(key)?),
        None => call = call.header("X-API-KEY", KEY),
    }
    let writes = !matches!(call.method.as_str(), "GET" | "HEAD" | "OPTIONS") && !step.no_wait;
    let before = if writes { Some(world.gateway.snapshot()?) } else { None };
    let address = world.address(Some(step.to.as_deref().unwrap_or("admin")))?;
    let answer = world.client.call(&address, &call)?;
    expect::answer(&step.expect, &world.names, &answer)?;
    save(world, step, &answer)?;
    match before {
        Some(before) if (200..300).contains(&answer.message.status()) => {
            admin::wait_live(world, &before, &answer.message)
        }
        _ => Ok(()),
    }
}

fn raw_bytes(world: &mut World, step: &Step, raw: &str) -> Result<()> {
    let address = world.address(step.to.as_deref())?;
    let sent = bytes(&world.names.fill(raw)?)?;
    let wanted = step.expect.answers.as_deref();
    let count = wanted.map_or(1, <[u16]>::len);
    let (messages, closed) = world.client.raw(&address, &sent, count, step.expect.closed)?;
    let got: Vec<_> = messages.iter().map(|message| message.status()).collect();
    if let Some(wanted) = wanted {
        ensure!(wanted == got, "answers: expected {wanted:?}, got {got:?}");
    }
    match messages.into_iter().last() {
        Some(message) => {
            expect::answer(&step.expect, &world.names, &Answer { message, closed, ..Answer::default() })
        }
        None => Ok(()),
    }
}

/// Plays moves, of which some wait for what upstreams see.
fn converse(world: &World, stream: &std::net::TcpStream, moves: &[crate::case::Move]) -> Result<Vec<u8>> {
    let before: Vec<usize> = world.upstreams.values().map(|upstream| upstream.seen().len()).collect();
    talk::play(stream, moves, &|name| {
        let (at, _, upstream) =
            world.upstreams.get_full(name).with_context(|| format!("no upstream {name}"))?;
        let until = Instant::now() + talk::PATIENCE;
        while upstream.seen().len() <= before[at] {
            ensure!(Instant::now() < until, "upstream {name} sees no request");
            std::thread::sleep(PAUSE);
        }
        Ok(())
    })
}

fn fill_move(names: &Names, step: &crate::case::Move) -> Result<crate::case::Move> {
    use crate::case::Move;
    Ok(match step {
        Move::Send(text) => Move::Send(names.fill(text)?),
        Move::Read(text) => Move::Read(names.fill(text)?),
        other => other.clone(),
    })
}

/// Runs a program to its end; both its outputs together are the body.
fn program(world: &World, step: &Step, mut command: Command, usual: Option<i32>) -> Result<()> {
    let output = tempfile::tempfile()?;
    command.current_dir(&world.folder).stdin(Stdio::null());
    command.stdout(output.try_clone()?).stderr(output.try_clone()?);
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > PROGRAM {
            child.kill()?;
            child.wait()?;
            bail!("still running after {PROGRAM:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let elapsed = start.elapsed();
    let printed = {
        use std::io::{Read, Seek};
        let mut output = output;
        let mut bytes = Vec::new();
        output.rewind()?;
        output.read_to_end(&mut bytes)?;
        bytes
    };
    if let Some(wanted) = step.expect.exit.or(usual) {
        let code = status.code().unwrap_or(-1);
        ensure!(
            code == wanted,
            "exit code: expected {wanted}, got {code}; it printed {}",
            expect::shorten(&printed)
        );
    }
    if let Some(least) = step.expect.at_least {
        ensure!(elapsed >= least, "took {elapsed:?}, expected at least {least:?}");
    }
    if let Some(most) = step.expect.at_most {
        ensure!(elapsed <= most, "took {elapsed:?}, expected at most {most:?}");
    }
    expect::body(&step.expect, &world.names, &printed)
}

fn save(world: &mut World, step: &Step, answer: &Answer) -> Result<()> {
    for (name, from) in &step.save {
        let value = match from.strip_prefix("header:") {
            Some(header) => answer
                .message
                .first(header)
                .with_context(|| format!("no header {header} to save"))?
                .to_owned(),
            None => {
                let json: serde_json::Value = serde_json::from_slice(&answer.message.body)?;
                let value = json.pointer(from).with_context(|| format!("nothing at {from} to save"))?;
                value.as_str().map_or_else(|| value.to_string(), str::to_owned)
            }
        };
        world.names.set(name.as_str(), value);
    }
    Ok(())
}

fn seen(world: &World, wanted: &Expect) -> Result<()> {
    for (name, wanted) in &wanted.seen {
        let upstream = world.upstreams.get(name).with_context(|| format!("no upstream {name}"))?;
        one_seen(world, upstream, wanted).with_context(|| format!("what upstream {name} saw"))?;
    }
    Ok(())
}

fn one_seen(world: &World, upstream: &crate::upstream::Upstream, wanted: &Seen) -> Result<()> {
    let requests = upstream.seen();
    if let Some(count) = wanted.count {
        ensure!(requests.len() == count, "requests: expected {count}, got {}", requests.len());
    }
    if let Some(connections) = wanted.connections {
        let got = upstream.connections();
        ensure!(got == connections, "connections: expected {connections}, got {got}");
    }
    let Some(last) = requests.last() else {
        ensure!(
            wanted.line.is_none()
                && wanted.headers.is_empty()
                && wanted.body.is_none()
                && wanted.body_matches.is_none(),
            "no request at all"
        );
        return Ok(());
    };
    if let Some(line) = &wanted.line {
        let line = world.names.fill(line)?;
        ensure!(last.line == line, "first line: expected {line:?}, got {:?}", last.line);
    }
    expect::fields("header", &wanted.headers, &world.names, &last.headers)?;
    expect::fields("trailer", &wanted.trailers, &world.names, &last.trailers)?;
    let body = Expect {
        body: wanted.body.clone(),
        body_matches: wanted.body_matches.clone(),
        body_size: wanted.body_size,
        ..Expect::default()
    };
    expect::body(&body, &world.names, &last.body)
}

/// A line may come after the answer it is about: threads of their own write it.
fn log(world: &World, wanted: &Expect, patience: Duration) -> Result<()> {
    let until = Instant::now() + patience;
    for pattern in wanted.log.iter().flat_map(|many| many.all()) {
        let pattern = world.names.fill(pattern)?;
        let regex = Regex::new(&pattern)?;
        while !regex.is_match(&world.gateway.log()) {
            ensure!(Instant::now() < until, "log: expected a match of {pattern:?}");
            std::thread::sleep(PAUSE);
        }
    }
    for text in wanted.log_lacks.iter().flat_map(|many| many.all()) {
        let text = world.names.fill(text)?;
        ensure!(!world.gateway.log().contains(&text), "log: expected it not to contain {text:?}");
    }
    Ok(())
}
