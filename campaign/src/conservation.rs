//! The equation: no slot comes from nowhere, none goes nowhere.
