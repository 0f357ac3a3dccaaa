//! The list of those who were told SUCCESS: a request id and a user, separated by a tab, one a line. `coupon load` writes it.

use std::{
    collections::HashMap,
    io::{self, BufRead, Write},
};

use campaign::{
    identity::{IdentityError, RequestId, UserId},
    postgres::audit::AuditedCoupon,
};

use super::finding::{FindingKind, Findings};

/// Who was told SUCCESS, by request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Successes(HashMap<RequestId, UserId>);

/// Why a list cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SuccessesError {
    /// The file.
    #[error("the list of successes cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Not request id, tab, user.
    #[error("line {0} of the list of successes is not <request id><tab><user id>")]
    Shape(usize),
    /// The request id.
    #[error("line {line} of the list of successes has no valid request id: {source}")]
    Request {
        /// Which line.
        line: usize,
        /// Why.
        source: uuid::Error,
    },
    /// The user.
    #[error("line {line} of the list of successes has no valid user: {source}")]
    User {
        /// Which line.
        line: usize,
        /// Why.
        source: IdentityError,
    },
}

impl Successes {
    /// Adds one; the same one again changes nothing.
    pub fn insert(&mut self, request: RequestId, user: UserId) {
        self.0.insert(request, user);
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds all of another list.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Reads a list.
    pub fn read(from: impl BufRead) -> Result<Self, SuccessesError> {
        let mut successes = Self::default();
        for (index, line) in from.lines().enumerate() {
            let (line_text, line) = (line?, index + 1);
            if line_text.is_empty() {
                continue;
            }
            let (request, user) = line_text.split_once('\t').ok_or(SuccessesError::Shape(line))?;
            let request = request
                .parse()
                .map_err(|source| SuccessesError::Request { line, source })?;
            let user = user.parse().map_err(|source| SuccessesError::User { line, source })?;
            successes.insert(request, user);
        }
        Ok(successes)
    }

    /// Writes the list.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        for (request, user) in &self.0 {
            writeln!(to, "{request}\t{user}")?;
        }
        to.flush()
    }

    /// Takes a coupon off the list; one that is not on it is a finding.
    pub fn meet(&mut self, coupon: &AuditedCoupon, findings: &mut Findings) {
        match self.0.remove(&coupon.request) {
            Some(user) if user == coupon.user => {}
            Some(user) => {
                let text = format_args!(
                    "user {user}, request {}: the coupon is {}'s",
                    coupon.request, coupon.user
                );
                findings.add(FindingKind::SuccessWithoutRow, text);
            }
            None => {
                let text = format_args!("user {}, coupon {}", coupon.user, coupon.request);
                findings.add(FindingKind::RowWithoutSuccess, text);
            }
        }
    }

    /// What is left has no row.
    pub fn finish(self, findings: &mut Findings) {
        let mut left: Vec<(RequestId, UserId)> = self.0.into_iter().collect();
        left.sort();
        for (request, user) in left {
            findings.add(
                FindingKind::SuccessWithoutRow,
                format_args!("user {user}, request {request}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_what_it_wrote() {
        let mut successes = Successes::default();
        successes.insert(RequestId::fresh(), "a user with spaces".parse().expect("valid"));
        let mut bytes = Vec::new();
        successes.write(&mut bytes).expect("writes");
        assert_eq!(Successes::read(bytes.as_slice()).expect("reads"), successes);
    }

    #[test]
    fn a_broken_line_is_named() {
        let good = format!("{}\tu\n", RequestId::fresh());
        for bad in ["no tab", "x\tu", "01890a5d-ac96-774b-bcce-b302099a8057\t"] {
            let error = Successes::read(format!("{good}{bad}\n").as_bytes())
                .expect_err("broken")
                .to_string();
            assert!(error.contains("line 2"), "{error}");
        }
    }
}
