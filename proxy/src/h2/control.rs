//! hot path
//!
//! Control frames: settings, windows, priorities, resets, PING and GOAWAY.

use std::task::Waker;

use wire::h2::frame::{self, Code, FIRST_WINDOW, FrameHead, MAX_PAYLOAD, MAX_WINDOW, flag, kind, setting};

use super::mux::{EndReason, GOAWAY_PING, Mux, PROBE_PING, Role};
use super::slots::{Priority, StreamError};

/// The error ends the connection.
type Checked = Result<(), Code>;

impl Mux {
    /// SETTINGS (RFC 9113 section 6.5).
    pub(super) fn settings(&mut self, head: FrameHead, payload: &[u8]) -> Checked {
        if head.stream != 0 {
            return Err(Code::PROTOCOL_ERROR);
        }
        if head.has(flag::ACK) {
            if head.length > 0 {
                return Err(Code::FRAME_SIZE_ERROR);
            }
            return self.settings_acknowledged();
        }
        if !head.length.is_multiple_of(6) {
            return Err(Code::FRAME_SIZE_ERROR);
        }
        for (id, value) in frame::settings(payload) {
            match id {
                setting::HEADER_TABLE_SIZE => self.encoder.set_max_table_size(value),
                // A server must not announce 1 (RFC 9113 section 6.5.2).
                setting::ENABLE_PUSH if value > 1 || value == 1 && self.role == Role::Client => {
                    return Err(Code::PROTOCOL_ERROR);
                }
                setting::MAX_CONCURRENT_STREAMS => {
                    self.peer_streams = value;
                    self.room_waiters.drain(..).for_each(Waker::wake);
                }
                setting::INITIAL_WINDOW_SIZE => self.resize_windows(value)?,
                setting::MAX_FRAME_SIZE if !(MAX_PAYLOAD..1 << 24).contains(&(value as usize)) => {
                    // Larger frames are never sent: they would delay other streams.
                    return Err(Code::PROTOCOL_ERROR);
                }
                setting::ENABLE_CONNECT_PROTOCOL => match value {
                    0 if self.peer_connects => return Err(Code::PROTOCOL_ERROR),
                    0 | 1 => self.peer_connects = value == 1,
                    _ => return Err(Code::PROTOCOL_ERROR),
                },
                _ => {}
            }
        }
        self.settled = true;
        frame::put_head(0, kind::SETTINGS, flag::ACK, 0, &mut self.out);
        Ok(())
    }

    /// Applies our initial window size to the peer's streams.
    fn settings_acknowledged(&mut self) -> Checked {
        if std::mem::replace(&mut self.acknowledged, true) {
            // An acknowledgement of settings that were never sent.
            return Ok(());
        }
        let more = i64::from(self.limits.stream_window) - i64::from(FIRST_WINDOW);
        for (_, slot) in self.slots.iter_mut() {
            slot.window += more;
        }
        Ok(())
    }

    /// `SETTINGS_INITIAL_WINDOW_SIZE` changes the windows of all streams (RFC 9113 section 6.9.2).
    fn resize_windows(&mut self, size: u32) -> Checked {
        if size > MAX_WINDOW {
            return Err(Code::FLOW_CONTROL_ERROR);
        }
        let more = i64::from(size) - self.peer_window;
        self.peer_window = i64::from(size);
        for (_, slot) in self.slots.iter_mut() {
            slot.send_window += more;
            if slot.send_window > i64::from(MAX_WINDOW) {
                return Err(Code::FLOW_CONTROL_ERROR);
            }
            if more > 0 {
                slot.wake_writer();
            }
        }
        Ok(())
    }

    /// WINDOW_UPDATE of the connection.
    pub(super) fn increase_window(&mut self, more: u32) -> Checked {
        if more == 0 {
            return Err(Code::PROTOCOL_ERROR);
        }
        self.send_window += i64::from(more);
        if self.send_window > i64::from(MAX_WINDOW) {
            return Err(Code::FLOW_CONTROL_ERROR);
        }
        self.grant();
        Ok(())
    }

    /// WINDOW_UPDATE of a stream. Ignored if the stream is closed.
    pub(super) fn increase_stream_window(&mut self, stream: u32, more: u32) -> Checked {
        let Some(index) = self.slots.find(stream) else { return Ok(()) };
        let slot = &mut self.slots[index];
        if slot.gone.is_some() {
            return Ok(());
        }
        if more == 0 {
            return Err(Code::PROTOCOL_ERROR);
        }
        slot.send_window += i64::from(more);
        if slot.send_window > i64::from(MAX_WINDOW) {
            return Err(Code::FLOW_CONTROL_ERROR);
        }
        if !slot.queued {
            slot.wake_writer();
        }
        Ok(())
    }

    /// RST_STREAM (RFC 9113 section 6.4).
    pub(super) fn rst_stream(&mut self, head: FrameHead, payload: &[u8]) -> Checked {
        if head.stream == 0 || self.is_idle(head.stream) {
            return Err(Code::PROTOCOL_ERROR);
        }
        if payload.len() != 4 {
            return Err(Code::FRAME_SIZE_ERROR);
        }
        let code = payload.first_chunk().map_or(Code::NO_ERROR, |bytes| Code(u32::from_be_bytes(*bytes)));
        if let Some(index) = self.slots.find(head.stream) {
            let slot = &mut self.slots[index];
            // A server that has answered whole may refuse the rest of the request (RFC 9113 section 8.1).
            if self.role == Role::Client && slot.received && code == Code::NO_ERROR {
                slot.sent = true;
                slot.wake_writer();
            } else {
                slot.break_off(StreamError::Reset(code));
                // The received part of a response is still delivered.
                if self.role == Role::Server {
                    self.drop_data(index);
                }
            }
            self.dequeue(index);
        }
        Ok(())
    }

    /// PING (RFC 9113 section 6.7).
    pub(super) fn ping(&mut self, head: FrameHead, payload: &[u8]) -> Checked {
        if head.stream != 0 {
            return Err(Code::PROTOCOL_ERROR);
        }
        let Ok(payload) = payload.try_into() else { return Err(Code::FRAME_SIZE_ERROR) };
        match (head.has(flag::ACK), payload) {
            (false, payload) => frame::put_ping(flag::ACK, &payload, &mut self.out),
            (true, GOAWAY_PING) => self.send_final_goaway(),
            (true, PROBE_PING) => self.probing = None,
            // An acknowledgement of a PING that was never sent.
            (true, _) => {}
        }
        Ok(())
    }

    /// GOAWAY (RFC 9113 section 6.8).
    pub(super) fn take_goaway(&mut self, head: FrameHead, payload: &[u8]) -> Checked {
        if head.stream != 0 {
            return Err(Code::PROTOCOL_ERROR);
        }
        let (Some(last), Some(code)) = (frame::number(payload), payload.get(4..8)) else {
            return Err(Code::FRAME_SIZE_ERROR);
        };
        let code = Code(code.try_into().map_or(0, u32::from_be_bytes));
        // A later GOAWAY cannot raise the last stream.
        let last = self.goaway.map_or(last, |(before, _)| before.min(last));
        self.goaway = Some((last, code));
        if self.role == Role::Client {
            self.room_waiters.drain(..).for_each(Waker::wake);
            let left_out: Vec<usize> =
                self.slots.iter_mut().filter(|(_, slot)| slot.id > last).map(|(index, _)| index).collect();
            for index in left_out {
                self.drop_data(index);
                self.dequeue(index);
                self.slots[index].break_off(StreamError::LeftOut);
            }
        } else if code != Code::NO_ERROR {
            self.end(EndReason::Closed(Some(code)));
        }
        Ok(())
    }

    /// PRIORITY is deprecated: only its form is checked (RFC 9113 section 6.3, RFC 7540 section 5.3.1).
    pub(super) fn priority(&mut self, head: FrameHead, payload: &[u8]) -> Checked {
        match payload.len() {
            5 if head.stream > 0 && frame::number(payload) != Some(head.stream) => Ok(()),
            5 => Err(Code::PROTOCOL_ERROR),
            _ if head.stream == 0 => Err(Code::PROTOCOL_ERROR),
            _ => Err(Code::FRAME_SIZE_ERROR),
        }
    }

    /// PRIORITY_UPDATE (RFC 9218 section 7.1). It has no effect before its stream begins.
    pub(super) fn priority_update(&mut self, head: FrameHead, payload: &[u8]) -> Checked {
        if head.stream != 0 || self.role == Role::Client {
            return Err(Code::PROTOCOL_ERROR);
        }
        let Some((stream, value)) = frame::number(payload).zip(payload.get(4..)) else {
            return Err(Code::FRAME_SIZE_ERROR);
        };
        if stream == 0 {
            return Err(Code::PROTOCOL_ERROR);
        }
        if let Some(index) = self.slots.find(stream) {
            self.slots[index].priority = Priority::from_field(value);
        }
        Ok(())
    }
}
