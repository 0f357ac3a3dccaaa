//! The name of a campaign: `namespace/name`, both DNS labels as Kubernetes wants them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// `namespace/name`. Ordered and hashable, so that it can key maps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CampaignName {
    namespace: String,
    name: String,
}

/// Why a text is not the name of a campaign.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NameError {
    /// A part is empty, too long or has a character that Kubernetes refuses.
    #[error(
        "campaign {part} {value:?} is not a DNS label: 1 to 63 of a-z, 0-9 and '-', starting and ending with a letter or digit"
    )]
    NotALabel {
        /// `namespace` or `name`.
        part: &'static str,
        /// What was given.
        value: String,
    },
    /// A name without namespace where none can be assumed.
    #[error("campaign {0:?} has no namespace: write namespace/name")]
    NoNamespace(String),
}

impl CampaignName {
    /// Builds a name from its two parts.
    pub fn new(namespace: &str, name: &str) -> Result<Self, NameError> {
        Ok(Self {
            namespace: label("namespace", namespace)?,
            name: label("name", name)?,
        })
    }

    /// Reads `namespace/name`; a bare name means `default_namespace`.
    pub fn parse(text: &str, default_namespace: &str) -> Result<Self, NameError> {
        match text.split_once('/') {
            Some((namespace, name)) => Self::new(namespace, name),
            None => Self::new(default_namespace, text),
        }
    }

    /// The Kubernetes namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name inside the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn label(part: &'static str, value: &str) -> Result<String, NameError> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = value.as_bytes();
    let valid = (1..=63).contains(&bytes.len())
        && bytes.iter().all(|&b| inner(b) || b == b'-')
        && inner(bytes[0])
        && inner(bytes[bytes.len() - 1]);
    if valid {
        Ok(value.to_owned())
    } else {
        Err(NameError::NotALabel {
            part,
            value: value.chars().take(80).collect(),
        })
    }
}

impl fmt::Display for CampaignName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl TryFrom<String> for CampaignName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        match text.split_once('/') {
            Some((namespace, name)) => Self::new(namespace, name),
            None => Err(NameError::NoNamespace(text)),
        }
    }
}

impl From<CampaignName> for String {
    fn from(name: CampaignName) -> Self {
        name.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_lives_in_the_default_namespace() {
        let name = CampaignName::parse("sale", "shop").expect("valid");
        assert_eq!(name.to_string(), "shop/sale");
        assert_eq!(CampaignName::parse("a/b", "shop").expect("valid").namespace(), "a");
    }

    #[test]
    fn what_kubernetes_refuses_is_refused() {
        for bad in [
            "",
            "A",
            "a_b",
            "-a",
            "a-",
            "a/b/c",
            "ä",
            &"x".repeat(64),
            "a}b",
            "/a",
            "a/",
        ] {
            assert!(CampaignName::parse(bad, "shop").is_err(), "{bad:?}");
        }
    }
}
