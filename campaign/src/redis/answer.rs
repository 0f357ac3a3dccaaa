//! Reads the array that a script answered, element by element. What does not fit is an answer that this release does
//! not know, never a default.

use std::str::FromStr;

use jiff::Timestamp;
use redis::Value;

use super::connection::RedisError;

/// The answer of one script.
pub(super) struct Answer {
    what: &'static str,
    values: Vec<Value>,
    next: usize,
}

impl Answer {
    pub(super) fn new(what: &'static str, value: Value) -> Result<Self, RedisError> {
        match value {
            Value::Array(values) => Ok(Self { what, values, next: 0 }),
            other => Err(RedisError::unknown_answer(what, &other)),
        }
    }

    /// The whole of it, as an error.
    pub(super) fn unknown(&self) -> RedisError {
        RedisError::unknown_answer(self.what, &Value::Array(self.values.clone()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next >= self.values.len()
    }

    /// Fails if something is left.
    pub(super) fn end(&self) -> Result<(), RedisError> {
        if self.is_empty() { Ok(()) } else { Err(self.unknown()) }
    }

    pub(super) fn next(&mut self) -> Result<&Value, RedisError> {
        let index = self.next;
        self.next += 1;
        self.values.get(index).ok_or_else(|| self.unknown())
    }

    pub(super) fn text(&mut self) -> Result<&str, RedisError> {
        let index = self.next;
        self.next += 1;
        match self.values.get(index) {
            Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).map_err(|_| self.unknown()),
            _ => Err(self.unknown()),
        }
    }

    pub(super) fn parse<T: FromStr>(&mut self) -> Result<T, RedisError> {
        let parsed = self.text()?.parse();
        parsed.map_err(|_| self.unknown())
    }

    /// An integer, also one that Lua gave as a string.
    pub(super) fn integer(&mut self) -> Result<i64, RedisError> {
        if let Some(Value::Int(number)) = self.values.get(self.next) {
            self.next += 1;
            return Ok(*number);
        }
        self.parse()
    }

    /// An integer, or `''`.
    pub(super) fn optional_integer(&mut self) -> Result<Option<i64>, RedisError> {
        if let Some(Value::BulkString(bytes)) = self.values.get(self.next)
            && bytes.is_empty()
        {
            self.next += 1;
            return Ok(None);
        }
        self.integer().map(Some)
    }

    /// A time in ms, or `''`.
    pub(super) fn timestamp(&mut self) -> Result<Option<Timestamp>, RedisError> {
        match self.optional_integer()? {
            Some(ms) => Timestamp::from_millisecond(ms).map(Some).map_err(|_| self.unknown()),
            None => Ok(None),
        }
    }
}
