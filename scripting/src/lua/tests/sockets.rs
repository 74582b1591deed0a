//! Sockets of scripts, over connections in memory.

use std::pin::Pin;
use std::task::{Context, Waker};

use sdk::connection::{Addresses, AsyncRead, AsyncWrite, Server};
use sdk::testing::{Pipe, reused_pipe};

use super::*;

fn feed(server: &mut Pipe, text: &str) {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(server).poll_write(&mut cx, text.as_bytes()).is_ready());
}

/// The bytes that the script has sent.
fn sent(server: &mut Pipe) -> String {
    let (mut all, mut cx, mut piece) = (Vec::new(), Context::from_waker(Waker::noop()), [0; 4096]);
    while let std::task::Poll::Ready(Ok(n @ 1..)) = Pin::new(&mut *server).poll_read(&mut cx, &mut piece) {
        all.extend_from_slice(&piece[..n]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

fn probe() -> Probe {
    let probe = Probe::default();
    probe.world.sleeps_last.set(true);
    probe
}

/// The text that a script writes that has a connected socket `s`, whose server sends a text and closes.
fn received(text: &str, code: &str) -> String {
    let mut probe = probe();
    let mut server = probe.world.serve();
    feed(&mut server, text);
    drop(server);
    let code = format!("return function() local s = assert(ngx.socket.connect('127.0.0.1', 80)) {code} end");
    let reply = reply(&mut probe, &code).expect(&code);
    assert_eq!(reply.status, 200, "{code}");
    String::from_utf8_lossy(&reply.body).into_owned()
}

#[test]
fn texts_are_received() {
    for (text, code, expected) in [
        ("one\r\ntwo\nrest", "ngx.print(s:receive(), s:receive('*l'))", "onetwo"),
        ("rest", "local a, b, c = s:receive() ngx.print(tostring(a), b, c)", "nilclosedrest"),
        ("abcdef", "ngx.print(s:receive(2), '|', s:receive('3'), '|', s:receive('*a'), '|', select(2, s:receive()))", "ab|cde|f|closed"),
        ("abc", "ngx.print(s:receive(0), tostring(s:receive(4)))", "nil"),
        ("abc", "local _, e, p = s:receive(4) ngx.print(e, p)", "closedabc"),
        ("abcdef", "ngx.print(s:receiveany(4), s:receiveany(4), select(2, s:receiveany(4)))", "abcdefclosed"),
        ("a--b--c", "local r = s:receiveuntil('--') ngx.print(r(), r(), tostring(r()))", "abnil"),
        ("a--b", "local r = s:receiveuntil('--', {inclusive = true}) local x, y, z = r(), r() ngx.print(x, tostring(y))", "a--nil"),
        (
            "abcdef--gh",
            "local r = s:receiveuntil('--') ngx.print(r(4), '|', r(4), '|', tostring(r(4)), '|', s:receive(2))",
            "abcd|ef|nil|gh",
        ),
        ("", "ngx.print(s:close(), select(2, s:close()), select(2, s:receive()), select(2, s:send('a')))", "1closedclosedclosed"),
        ("x", "s:receive('*a') ngx.print(select(2, s:setkeepalive()))", "closed"),
        ("xy", "s:receive(1) ngx.print(select(2, s:setkeepalive()), s:receive(1))", "unread data in buffery"),
        ("", "ngx.print(s:getreusedtimes(), s:settimeout(5) == nil, s:setoption('keepalive', true))", "0falsetrue"),
        (
            "",
            "for _, bad in ipairs({-1, 0.5, 'x', {}}) do assert(not pcall(s.receive, s, bad)) end
             assert(not pcall(s.receiveuntil(''))) assert(not pcall(s.receiveuntil(('x'):rep(257))))
             assert(not pcall(s.settimeout, s, -1)) assert(not pcall(s.receiveany, s, 0)) ngx.print('ok')",
            "ok",
        ),
        (
            "",
            "s:close() for _, bad in ipairs({'', 'a b', 'a/b', ('x'):rep(300)}) do
                 local ok, err = ngx.socket.tcp():connect(bad, 80) assert(not ok and err == 'invalid host name') end
             assert(not pcall(s.connect, s, 'a', 65536)) assert(select(2, s:connect('a')) == 'missing the port number')
             ngx.print(select(2, s:connect('unix:/run/x')))",
            "unix: sockets are not open to scripts (sluice.lua.unix_sockets)",
        ),
        (
            "ab",
            "local t = ngx.thread.spawn(function() return s:receive(9) end) ngx.print(select(2, s:receive()), select(4, ngx.thread.wait(t)))",
            "socket busy readingab",
        ),
    ] {
        assert_eq!(received(text, code), expected, "{code}");
    }
}

#[test]
fn texts_are_sent_and_connections_go_back_to_their_pool() {
    let mut probe = probe();
    let mut first = probe.world.serve();
    let (again, mut second) = reused_pipe();
    probe.world.connections.borrow_mut().push_back(Ok(again));
    let code = "return function()
        local s = ngx.socket.tcp()
        assert(s:connect('server.test', 6379, {pool = 'mine'}) == 1)
        ngx.print(s:send('a'), s:send({'b', {1, 2.5}, 'c'}), s:send(7), tostring(pcall(s.send, s, {true})))
        assert(s:setkeepalive(0) == 1) assert(select(2, s:send('x')) == 'closed')
        assert(s:connect('::1', 6379)) assert(s:getreusedtimes() == 1)
        assert(s:send('')) s:send('again')
    end";
    let reply = reply(&mut probe, code).unwrap();
    assert_eq!((reply.status, &*reply.body), (200, &b"161false"[..]));
    assert_eq!((sent(&mut first).as_str(), sent(&mut second).as_str()), ("ab12.5c7", "again"));
    assert_eq!(first.kept(), Some(Duration::from_secs(86_400)));
    assert_eq!(second.kept(), None);
    let opened = probe.world.opened.borrow();
    let (one, two) = (&opened[0], &opened[1]);
    assert_eq!((&*one.pool, &*two.pool), ("lua:mine", "lua:::1:6379"));
    let Server::Tcp { at: Addresses::Host { name, port: 6379 }, tls: None } = &one.server else { panic!() };
    assert_eq!(&**name, "server.test");
    let Server::Tcp { at: Addresses::Known(known), tls: None } = &two.server else { panic!() };
    assert_eq!(known[0].to_string(), "[::1]:6379");
}

#[test]
fn a_time_limit_leaves_the_connection_and_what_came() {
    let mut probe = Probe::default();
    let mut server = probe.world.serve();
    feed(&mut server, "part");
    // Sleeps are over at once.
    let code = "return function() local s = ngx.socket.connect('127.0.0.1', 80) s:settimeouts(1, 2, 3)
        local a, err, part = s:receive() ngx.print(tostring(a), err, part, s:send('x')) end";
    assert_eq!(reply(&mut probe, code).unwrap().body, "niltimeoutpart1");
    assert!(probe.world.slept.borrow().contains(&Duration::from_millis(3)));
}

#[test]
fn sockets_and_their_bytes_are_bounded_and_end_with_the_request() {
    let scripts = Scripts::new();
    let mut probe = probe();
    let mut servers: Vec<Pipe> = (0..200).map(|_| probe.world.serve()).collect();
    let code = "return function() kept = kept or {} local err
        for i = 1, 100 do local s = ngx.socket.tcp() local ok ok, err = s:connect('127.0.0.1', 80)
            if not ok then break end kept[#kept + 1] = s end
        ngx.print(#kept, err) end";
    let stage = scripts.stage(&probe, "access", code).unwrap();
    let mut x = probe.exchange();
    let Step::Reply(first) = run(&stage, Phase::Access, &mut x) else { panic!("no reply") };
    assert_eq!(
        first.body,
        "64too many open sockets (sluice.lua.max_sockets, a quarter of it for one request)"
    );
    drop(x);
    // As a worker does at the end of an exchange.
    probe.messages.clear();
    for server in &mut servers[..64] {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(Pin::new(server).poll_read(&mut cx, &mut [0]), std::task::Poll::Ready(Ok(0))));
    }
    // Another request cannot use them.
    let Step::Reply(again) = run(&stage, Phase::Access, &mut probe.exchange()) else { panic!("no reply") };
    assert!(again.body.starts_with(b"128too many"), "{again:?}");
    probe.messages.clear();
    let code = "return function() local s = ngx.socket.connect('127.0.0.1', 80)
        ngx.print(s:receive('*a') or '', select(2, s:receive('*a'))) end";
    let stage = scripts.stage(&probe, "access", code).unwrap();
    let long = "x".repeat(17 << 20);
    feed(&mut servers[128], &long);
    let Step::Reply(full) = run(&stage, Phase::Access, &mut probe.exchange()) else { panic!("no reply") };
    assert_eq!(full.body, "closed");
}

#[test]
fn a_socket_of_another_request_or_phase_is_refused() {
    let scripts = Scripts::new();
    let mut probe = probe();
    let _server = probe.world.serve();
    let code = "return function() if not kept then kept = ngx.socket.connect('127.0.0.1', 80) ngx.print('made') return end
        for _, name in ipairs({'send', 'receive', 'close', 'setkeepalive', 'getreusedtimes', 'connect'}) do
            ngx.print(select(2, pcall(kept[name], kept, 1, 1)):match('bad request')) end end";
    let stage = scripts.stage(&probe, "access", code).unwrap();
    for expected in ["made".to_owned(), "bad request".repeat(6)] {
        let Step::Reply(reply) = run(&stage, Phase::Access, &mut probe.exchange()) else {
            panic!("no reply")
        };
        assert_eq!(reply.body, expected.as_bytes());
        probe.messages.clear();
    }
    let code = "return function() ngx.header.x = select(2, pcall(ngx.socket.tcp)) end";
    let stage = scripts.stage(&probe, "header_filter", code).unwrap();
    let mut x = probe.exchange();
    respond(&mut x, 200, &[]);
    assert!(matches!(stage.instance().header_filter(&mut x), Step::Next));
    let error = String::from_utf8_lossy(x.response_header("x").unwrap()).into_owned();
    assert!(error.contains("API disabled in the context of header_filter_by_lua*"), "{error}");
}

#[test]
fn a_handshake_needs_an_open_connection_without_unread_bytes() {
    for (text, code, expected) in [
        ("", "s:close() ngx.print(select(2, s:sslhandshake(nil, 'a', true)))", "closed"),
        (
            "abc",
            "s:receive(1) ngx.print(select(2, s:sslhandshake()), select(2, s:receive()))",
            "unread data in bufferclosed",
        ),
        (
            "",
            "ngx.print(select(2, s:sslhandshake(nil, 'a', true)), select(2, s:send('x')))",
            "TLS is not available on this connectionclosed",
        ),
    ] {
        assert_eq!(received(text, code), expected, "{code}");
    }
}

#[test]
fn datagrams_are_sent_and_received() {
    let mut probe = probe();
    let mut server = probe.world.serve();
    feed(&mut server, "answer");
    let code = "return function() local s = ngx.socket.udp() assert(s:setpeername('127.0.0.1', 53) == 1)
        ngx.print(s:send({'que', 'ry'}), s:receive(), s:close(), tostring(s:setpeername('unix:/x'))) end";
    assert_eq!(reply(&mut probe, code).unwrap().body, "1answer1nil");
    assert_eq!(sent(&mut server), "query");
    assert!(matches!(probe.world.opened.borrow()[0].server, Server::Udp(_)));
}
