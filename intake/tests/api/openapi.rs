//! `docs/openapi.json` is what the handlers say.

use std::{fs, path::Path};

#[test]
fn the_checked_in_description_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    let mut described = intake::http::openapi().to_pretty_json().unwrap();
    described.push('\n');
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        fs::write(&path, &described).unwrap();
    }
    let checked_in = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        checked_in == described,
        "docs/openapi.json is out of date: UPDATE_OPENAPI=1 cargo test -p intake --test api openapi"
    );
}
