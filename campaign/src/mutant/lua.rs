//! Mutants of the scripts: the text is changed when it is loaded, so that `lua/` holds the product alone.

use std::borrow::Cow;

#[cfg(any(test, feature = "mutants"))]
use super::Mutant;

/// A line of a script and what stands there instead.
#[cfg(any(test, feature = "mutants"))]
struct Edit {
    mutant: Mutant,
    /// The file in `lua/`, without its ending; the prelude goes before every other one.
    file: &'static str,
    line: &'static str,
    instead: &'static str,
}

#[cfg(any(test, feature = "mutants"))]
const EDITS: &[Edit] = &[
    Edit {
        mutant: Mutant::NoRunIdCheck,
        file: "prelude",
        line: "  if not status or server ~= this_server() then",
        instead: "  if not status then",
    },
    Edit {
        mutant: Mutant::MissingKeyAsZero,
        file: "prelude",
        line: "  if call('EXISTS', unpack(KEYS, 2, last)) ~= last - 1 then",
        instead: "  if false then",
    },
    Edit {
        mutant: Mutant::MissingKeyAsZero,
        file: "reserve",
        line: "local taken = tonumber(call('GET', occupied_key))",
        instead: "local taken = tonumber(call('GET', occupied_key) or 0)",
    },
    Edit {
        mutant: Mutant::ReleaseByUserAlone,
        file: "release",
        line: "    if held == reservation then",
        instead: "    if held ~= 'canceled' then",
    },
    Edit {
        mutant: Mutant::NoEpochCheckInCommit,
        file: "rebuild_commit",
        line: "if meta[1] ~= epoch or meta[2] ~= 'rebuilding' or meta[3] ~= server",
        instead: "if meta[2] ~= 'rebuilding' or meta[3] ~= server",
    },
];

/// The script of that name (with its prelude) as this process runs it.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn script(_: &str, text: &'static str) -> Cow<'static, str> {
    Cow::Borrowed(text)
}

/// The script of that name (with its prelude) as this process runs it.
#[cfg(feature = "mutants")]
pub(crate) fn script(name: &str, text: &'static str) -> Cow<'static, str> {
    EDITS
        .iter()
        .filter(|edit| super::is(edit.mutant) && (edit.file == "prelude" || edit.file == name))
        .fold(Cow::Borrowed(text), |text, edit| Cow::Owned(edit.apply(&text)))
}

#[cfg(any(test, feature = "mutants"))]
impl Edit {
    /// # Panics
    /// Unless the line is there, once: a mutant that changes nothing would be caught by nobody.
    fn apply(&self, text: &str) -> String {
        let found = text.lines().filter(|line| *line == self.line).count();
        assert!(
            found == 1,
            "{} wants to change {:?} in {}.lua, which is there {found} times",
            self.mutant,
            self.line,
            self.file
        );
        let lines: Vec<&str> = text
            .lines()
            .map(|line| if line == self.line { self.instead } else { line })
            .collect();
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_edit_finds_its_line() {
        for edit in EDITS {
            let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../lua")
                .join(edit.file);
            let text = std::fs::read_to_string(file.with_extension("lua")).unwrap();
            assert_ne!(edit.apply(&text), text);
        }
    }
}
