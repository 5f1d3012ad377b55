// SPDX-License-Identifier: Apache-2.0

//! What the compiler says about wrong constructors; the expected texts are under review like code.

#[test]
fn wrong_constructors_get_readable_messages() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
