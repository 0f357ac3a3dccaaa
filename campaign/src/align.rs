//! One round over a campaign: applies wanted terms, aligns Redis to Postgres, rebuilds what is missing. The operator
//! runs it; the local stack runs it in the operator's place.
