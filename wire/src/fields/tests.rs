use super::*;

fn text(fields: &Fields) -> String {
    let mut out = Vec::new();
    fields.write_to(&mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn set_replaces_the_first_and_drops_the_rest() {
    let mut fields = Fields::new();
    for value in ["1", "2", "3"] {
        fields.append(b"X-A", value.as_bytes()).unwrap();
        fields.append(b"X-B", value.as_bytes()).unwrap();
    }
    fields.set(b"x-a", b"9").unwrap();
    assert_eq!(text(&fields), "X-A: 9\r\nX-B: 1\r\nX-B: 2\r\nX-B: 3\r\n");
    assert!(fields.remove(b"x-b"));
    assert!(!fields.remove(b"x-b"));
    assert_eq!(text(&fields), "X-A: 9\r\n");
}

#[test]
fn value_check_agrees_with_the_naive_one() {
    for byte in 0..=255u8 {
        for filler in [b'a', b'\t', b' ', 0x7e, 0x80, 0xff] {
            for len in 1..=20 {
                for place in 0..len {
                    let mut value = vec![filler; len];
                    value[place] = byte;
                    let expected = value.iter().copied().all(is_value_byte);
                    assert_eq!(check_value(&value).is_ok(), expected, "{value:?}");
                }
            }
        }
    }
    assert_eq!(check_value(b""), Ok(()));
}

#[test]
fn lines_move_to_another_list() {
    let (mut early, mut fields) = (Fields::new(), Fields::new());
    fields.append(b"Server", b"x").unwrap();
    let lines = [("X-A", ""), ("Retry-After", "7")].map(|(name, value)| {
        let id = Name::from_bytes(name.as_bytes());
        early.intern_line(id, name.as_bytes(), value.as_bytes())
    });
    let start = fields.intern_text(&early);
    lines.into_iter().for_each(|line| fields.push(line.behind(start)));
    assert_eq!(text(&fields), "Server: x\r\nX-A: \r\nRetry-After: 7\r\n");
    assert_eq!(fields.get(Name::RetryAfter), Some(&b"7"[..]));
    assert_eq!(fields.get_named(b"x-a"), Some(&b""[..]));
    assert!(fields.contains_checked(Name::Other, b"x-A") && !fields.contains_checked(Name::Other, b"x-b"));
}

#[test]
fn lines_are_made_once_for_many_heads() {
    let lines = |lines: &[(&str, &str)]| {
        FieldLines::new(lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    };
    for bad in [("X A", "1"), ("", "1"), ("X-A", "1\r\nX-B: 2"), ("X-A", "\0")] {
        assert!(lines(&[("X-B", "1"), bad]).is_err(), "{bad:?}");
    }
    let both = lines(&[("retry-after", "1"), ("X-Own", ""), ("Retry-After", "7")]).unwrap();
    let listed = [(&b"retry-after"[..], &b"7"[..], Name::RetryAfter), (b"X-Own", b"", Name::Other)];
    assert_eq!(both.iter().collect::<Vec<_>>(), listed);
    let mut fields = Fields::new();
    fields.append(b"Server", b"x").unwrap();
    fields.set_lines(&both);
    fields.append(b"Retry-After", b"8").unwrap();
    assert_eq!(text(&fields), "Server: x\r\nretry-after: 7\r\nX-Own: \r\nRetry-After: 8\r\n");
    // As `set`: the first one changes in its place and keeps its spelling, further ones go.
    fields.set_lines(&lines(&[("Retry-After", "123"), ("x-own", "9"), ("X-New", "1")]).unwrap());
    assert_eq!(text(&fields), "Server: x\r\nretry-after: 123\r\nX-Own: 9\r\nX-New: 1\r\n");
    fields.set_lines(&FieldLines::default());
    assert_eq!(fields.len(), 4);
}

/// Fields that lie side by side are written in one piece, others by themselves, in the order of the list.
#[test]
fn any_fields_of_a_head_are_written_as_each_by_itself() {
    let head = b"A: 1\r\nB: 2\r\nC:3\r\nD: 4\r\nE: 5\r\n\r\n";
    let mut fields = Fields::new();
    fields.load(head);
    for name in *b"ABCDE" {
        let start = head.iter().position(|&byte| byte == name).unwrap() as u32;
        let value = start + if name == b'C' { 2 } else { 3 };
        let span = |start| Span { start, len: 1 };
        fields.push(Field { id: Name::Other, is_line: name != b'C', name: span(start), value: span(value) });
    }
    fields.set(b"F", b"6").unwrap();
    fields.append(b"G", b"7").unwrap();
    fields.set(b"b", b"22").unwrap();
    for chosen in 0u32..1 << fields.len() {
        for reversed in [false, true] {
            let mut some: Vec<_> = fields
                .list()
                .iter()
                .enumerate()
                .filter(|(at, _)| chosen >> at & 1 == 1)
                .map(|(_, f)| f)
                .collect();
            if reversed {
                some.reverse();
            }
            let line = |field: &&Field| {
                [fields.bytes(field.name), b": ", fields.bytes(field.value), b"\r\n"].concat()
            };
            let expected: Vec<u8> = some.iter().flat_map(line).collect();
            let mut out = b"before ".to_vec();
            fields.write_lines(some, &mut out);
            assert_eq!(out, [b"before ", &expected[..]].concat(), "{chosen:b}");
        }
    }
}

#[test]
fn lookalikes_are_only_other_spellings() {
    let mut fields = Fields::new();
    for name in ["X-User-Id", "x_user_id", "X_User-ID", "X-User-Ids", "XxUser-Id", "X-User.Id", "x-user-id"] {
        fields.append(name.as_bytes(), b"1").unwrap();
    }
    fields.remove_lookalikes(b"X-User-Id");
    let names: Vec<_> =
        fields.iter().map(|(name, _, _)| String::from_utf8_lossy(name).into_owned()).collect();
    assert_eq!(names, ["X-User-Id", "X-User-Ids", "XxUser-Id", "X-User.Id", "x-user-id"]);
    assert!(fields.contains_alike(b"x_USER_id") && fields.contains_alike(b"X-User-Id"));
    assert!(!fields.contains_alike(b"X-User-I") && !fields.contains_alike(b"X-User_Idx"));
    fields.remove_alike(b"X_User-ID");
    assert!(!fields.contains_alike(b"X-User-Id"));
    assert_eq!(text(&fields), "X-User-Ids: 1\r\nXxUser-Id: 1\r\nX-User.Id: 1\r\n");
    let mut fields = Fields::new();
    for name in ["User-Agent", "Content-Type"] {
        fields.append(name.as_bytes(), b"1").unwrap();
    }
    fields.remove_lookalikes(b"user_agent");
    assert_eq!(text(&fields), "Content-Type: 1\r\n");
}

/// Lines have the same form regardless of the original spacing and of later changes.
#[test]
fn lines_do_not_depend_on_the_original_spacing() {
    let mut fields = Fields::new();
    let head = b"A: 1\r\nB:2\r\nC:\t3 \r\nD: 4 \r\nE: \r\n\r\n";
    fields.load(head);
    let at = |text: &[u8]| head.windows(text.len()).position(|window| window == text).unwrap() as u32;
    for (name, value, len) in
        [(b"A", at(b"1"), 1), (b"B", at(b"2"), 1), (b"C", at(b"3"), 1), (b"D", at(b"4"), 1)]
    {
        let name = Span { start: at(name), len: 1 };
        let field = Field { id: Name::Other, is_line: false, name, value: Span { start: value, len } };
        fields.push(Field { is_line: fields.is_in_line_form(&field), ..field });
    }
    let value = Span { start: at(b"E: ") + 3, len: 0 };
    fields.push(Field { id: Name::Other, is_line: true, name: Span { start: at(b"E"), len: 1 }, value });
    assert_eq!(text(&fields), "A: 1\r\nB: 2\r\nC: 3\r\nD: 4\r\nE: \r\n");
    fields.set(b"a", b"9").unwrap();
    fields.append(b"F", b": \t").unwrap();
    assert_eq!(text(&fields), "A: 9\r\nB: 2\r\nC: 3\r\nD: 4\r\nE: \r\nF: : \t\r\n");
}

/// Lines of any length and with any white space keep their exact ends.
#[test]
fn lines_keep_their_exact_ends() {
    for (before, spaces, length) in
        (0..12).flat_map(|a| (0..12).flat_map(move |b| (0..24).map(move |c| (a, b, c))))
    {
        let (before, value) = ("b".repeat(before), "v".repeat(length));
        let mut fields = Fields::new();
        let space = [" ", "\t"][length % 2].repeat(spaces);
        let head = format!("A: {before}\r\nB:{space}{value}\r\nC: 1\r\nD: 2\r\n\r\n");
        fields.load(head.as_bytes());
        let start = before.len() + 5;
        let mut push = |name: usize, value: usize, len: usize| {
            let span = |start: usize, len: usize| Span { start: start as u32, len: len as u32 };
            let field =
                Field { id: Name::Other, is_line: false, name: span(name, 1), value: span(value, len) };
            fields.push(Field { is_line: fields.is_in_line_form(&field), ..field });
        };
        push(0, 3, before.len());
        push(start, start + 2 + spaces, length);
        let end = start + 2 + spaces + length + 2;
        push(end, end + 3, 1);
        assert_eq!(text(&fields), format!("A: {before}\r\nB: {value}\r\nC: 1\r\n"), "{head:?}");
    }
}

#[test]
fn a_known_name_matches_in_every_spelling() {
    let mut fields = Fields::new();
    assert!(fields.is_empty() && !fields.contains(Name::Host));
    fields.append(b"HOST", b"a").unwrap();
    fields.append_id(Name::Cookie, b"b").unwrap();
    fields.append(b"host", b"c").unwrap();
    assert!(!fields.is_empty() && fields.len() == 3);
    assert!(fields.contains(Name::Host) && !fields.contains(Name::Authorization));
    assert_eq!((fields.get(Name::Host), fields.get_named(b"hOSt")), (Some(&b"a"[..]), Some(&b"a"[..])));
    assert_eq!(fields.all(b"Host").collect::<Vec<_>>(), [b"a", b"c"]);
    assert!(fields.remove_id(Name::Host), "there was one");
    assert!(!fields.remove_id(Name::Host), "there is no other");
    assert_eq!(text(&fields), "Cookie: b\r\n");
}

#[test]
fn a_huge_head_does_not_stay_in_memory() {
    let mut fields = Fields::new();
    fields.append(b"X-Huge", &[b'x'; 100_000]).unwrap();
    fields.clear(1000);
    assert!(fields.is_empty() && fields.text.capacity() <= 1000);
    fields.append(b"X-Small", &[b'x'; 500]).unwrap();
    let kept = fields.text.capacity();
    fields.clear(10_000);
    assert_eq!(fields.text.capacity(), kept, "a small one does, for the next head");
}

#[test]
fn cleared_heads_keep_a_small_buffer() {
    let mut request = crate::RequestHead::default();
    let mut response = crate::ResponseHead { status: 200, ..Default::default() };
    for (bytes, kept) in [(4000, true), (100_000, false)] {
        let value = vec![b'x'; bytes];
        request.fields.append(b"X", &value).unwrap();
        response.fields.append(b"X", &value).unwrap();
        request.clear();
        response.clear();
        assert!(request.fields.is_empty() && response.fields.is_empty());
        assert_eq!((response.status, response.fields.bytes(Span::default())), (0, &b""[..]));
        for fields in [&request.fields, &response.fields] {
            assert_eq!(fields.text.capacity() >= 4000, kept || fields.text.capacity() <= 8192, "{bytes}");
            assert!(fields.text.capacity() <= 8192, "{bytes}");
        }
    }
}

#[test]
fn an_error_names_the_invalid_part() {
    assert!(BadField::Name.to_string().contains("name must be a token"));
    assert!(BadField::Value.to_string().contains("value must not hold CR, LF"));
}

#[test]
fn line_breaks_and_controls_are_rejected() {
    let mut fields = Fields::new();
    assert_eq!(fields.set(b"a", b"b\r\nc: d"), Err(BadField::Value));
    assert_eq!(fields.append(b"a", b"b\0"), Err(BadField::Value));
    assert_eq!(fields.append(b"a b", b"c"), Err(BadField::Name));
    assert_eq!(fields.append(b"", b"c"), Err(BadField::Name));
    assert_eq!(fields.append_id(Name::Host, b"a\n"), Err(BadField::Value));
    assert!(fields.is_empty());
}

#[test]
fn the_text_of_a_message_is_bounded() {
    let mut fields = Fields::new();
    let long = vec![b'x'; 1 << 20];
    for _ in 0..14 {
        // The text of the value before stays.
        fields.set(b"a", &long).unwrap();
    }
    assert_eq!(fields.append(b"b", &long), Ok(()));
    assert_eq!(fields.append(b"b", &long), Err(BadField::Room));
    assert_eq!(fields.set(b"a", &long), Err(BadField::Room));
    assert_eq!(fields.set_id(Name::Host, &long), Err(BadField::Room));
    assert_eq!(fields.append_id(Name::Host, &long), Err(BadField::Room));
    assert_eq!((fields.len(), fields.get_named(b"a").unwrap().len()), (2, 1 << 20));
    assert!(BadField::Room.to_string().contains("16 MiB"));
    fields.clear(0);
    assert_eq!(fields.append(b"b", &long), Ok(()));
}
