//! What an answer of the door means for the user who got it.

use std::time::Duration;

use campaign::identity::RequestId;
use serde::Deserialize;

/// What a user's claim has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The coupon is his.
    Success(RequestId),
    /// Another request of his has it.
    Duplicate(RequestId),
    /// No coupon for him, for this reason (`SOLD_OUT`, `CLOSED`, …).
    Refused(String),
}

/// What the user does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is over.
    Done(Outcome),
    /// The same claim with the same key, after this long.
    AskAgain(Duration),
    /// Asks for the status of this request.
    AskStatus(RequestId),
}

/// An answer: what is counted, and what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgment {
    /// `SUCCESS`, `PENDING` or the problem's code; the HTTP status where there is neither.
    pub name: String,
    /// What follows.
    pub step: Step,
}

/// Where no `Retry-After` came.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Body<'a> {
    #[serde(borrow)]
    result: Option<&'a str>,
    #[serde(borrow)]
    status: Option<StatusField<'a>>,
    #[serde(borrow)]
    code: Option<&'a str>,
    #[serde(borrow)]
    reason: Option<&'a str>,
    request_id: Option<RequestId>,
}

/// A problem's `status` is the HTTP status, a request's is a word.
#[derive(Deserialize)]
#[serde(untagged)]
enum StatusField<'a> {
    Word(&'a str),
    Number(#[allow(dead_code, reason = "only its shape tells it from a word")] u16),
}

fn read(body: &[u8]) -> Body<'_> {
    // What cannot be read is judged by its HTTP status.
    serde_json::from_slice(body).unwrap_or_default()
}

/// Judges the answer to `POST /coupon-issues`.
pub fn judge_claim(http: u16, retry_after: Option<Duration>, body: &[u8]) -> Judgment {
    let body = read(body);
    let name = body
        .result
        .or(body.code)
        .map_or_else(|| format!("HTTP {http}"), str::to_owned);
    let step = match (http, name.as_str(), body.request_id) {
        (202, "SUCCESS", Some(request)) => Step::Done(Outcome::Success(request)),
        (202, "PENDING", Some(request)) => Step::AskStatus(request),
        (409, "DUPLICATE", Some(request)) => Step::Done(Outcome::Duplicate(request)),
        // With `outcome: unknown` too: the same key makes it the same request.
        (429 | 500.., ..) => Step::AskAgain(retry_after.unwrap_or(RETRY)),
        _ => Step::Done(Outcome::Refused(name.clone())),
    };
    Judgment { name, step }
}

/// Judges the answer to `GET /coupon-issues/{request}`.
pub fn judge_status(request: RequestId, http: u16, body: &[u8]) -> Step {
    let body = read(body);
    let word = match body.status {
        Some(StatusField::Word(word)) => word,
        _ => "",
    };
    match (http, word, body.reason) {
        (200, "ISSUED", _) => Step::Done(Outcome::Success(request)),
        (200, "PENDING", _) => Step::AskStatus(request),
        // The attempt reached nobody: the same request may be tried again.
        (200, "REJECTED", Some("NOT_STORED")) => Step::AskAgain(Duration::ZERO),
        (200, "REJECTED", reason) => Step::Done(Outcome::Refused(format!("REJECTED {}", reason.unwrap_or("?")))),
        (404, ..) => Step::AskAgain(Duration::ZERO),
        (429 | 500.., ..) => Step::AskStatus(request),
        _ => Step::Done(Outcome::Refused(format!("status HTTP {http}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    fn id() -> RequestId {
        ID.parse().expect("valid")
    }

    #[test]
    fn claims_end_are_asked_again_or_asked_for() {
        let after = Some(Duration::from_secs(2));
        let refused = |name: &str| Step::Done(Outcome::Refused(name.to_owned()));
        let table = [
            (
                202,
                format!(r#"{{"result":"SUCCESS","requestId":"{ID}"}}"#),
                "SUCCESS",
                Step::Done(Outcome::Success(id())),
            ),
            (
                202,
                format!(r#"{{"result":"PENDING","requestId":"{ID}"}}"#),
                "PENDING",
                Step::AskStatus(id()),
            ),
            (
                409,
                format!(r#"{{"type":"x","status":409,"code":"DUPLICATE","requestId":"{ID}"}}"#),
                "DUPLICATE",
                Step::Done(Outcome::Duplicate(id())),
            ),
            (
                410,
                r#"{"status":410,"code":"SOLD_OUT"}"#.to_owned(),
                "SOLD_OUT",
                refused("SOLD_OUT"),
            ),
            (
                403,
                r#"{"status":403,"code":"CLOSED"}"#.to_owned(),
                "CLOSED",
                refused("CLOSED"),
            ),
            (
                503,
                format!(r#"{{"status":503,"code":"COUPON_ISSUE_KAFKA_ERROR","outcome":"unknown","requestId":"{ID}"}}"#),
                "COUPON_ISSUE_KAFKA_ERROR",
                Step::AskAgain(Duration::from_secs(2)),
            ),
            (
                502,
                "<html>".to_owned(),
                "HTTP 502",
                Step::AskAgain(Duration::from_secs(2)),
            ),
            (404, "nothing".to_owned(), "HTTP 404", refused("HTTP 404")),
        ];
        for (http, body, name, step) in table {
            let judgment = judge_claim(http, after, body.as_bytes());
            assert_eq!((judgment.name.as_str(), judgment.step), (name, step), "{http} {body}");
        }
        assert_eq!(judge_claim(503, None, b"").step, Step::AskAgain(RETRY));
    }

    #[test]
    fn a_status_is_final_pending_or_worth_another_claim() {
        let table = [
            (200, r#"{"status":"ISSUED"}"#, Step::Done(Outcome::Success(id()))),
            (200, r#"{"status":"PENDING"}"#, Step::AskStatus(id())),
            (
                200,
                r#"{"status":"REJECTED","reason":"NOT_STORED"}"#,
                Step::AskAgain(Duration::ZERO),
            ),
            (
                200,
                r#"{"status":"REJECTED","reason":"CAMPAIGN_GONE"}"#,
                Step::Done(Outcome::Refused("REJECTED CAMPAIGN_GONE".to_owned())),
            ),
            (
                404,
                r#"{"status":404,"code":"UNKNOWN_REQUEST"}"#,
                Step::AskAgain(Duration::ZERO),
            ),
            (
                503,
                r#"{"status":503,"code":"STATE_UNAVAILABLE"}"#,
                Step::AskStatus(id()),
            ),
        ];
        for (http, body, step) in table {
            assert_eq!(judge_status(id(), http, body.as_bytes()), step, "{http} {body}");
        }
    }
}
