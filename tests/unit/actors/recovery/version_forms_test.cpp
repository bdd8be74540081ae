// Which keepers are sent updates instead of versions.

#include "actors/recovery/version_forms_core.hpp"

#include <catch2/catch_test_macros.hpp>

namespace {

using namespace troupe;
using actors::version_form;
using actors::version_forms_core;

constexpr actors::version_choice fewer{.after = 4, .state_bytes = 300, .update_bytes = 100};

/// Two keepers, of which the second one is apart and has version 4.
version_forms_core with_distant_keeper(bool is_repeatable = true) {
  version_forms_core made(2, is_repeatable);
  made.is_apart(1);
  for (const std::size_t place : {0U, 1U}) made.stored(place, 4);
  return made;
}

}  // namespace

TEST_CASE("A keeper that shares no memory with the stage is sent what is fewer bytes") {
  const auto forms = with_distant_keeper();
  CHECK(forms.wants_updates());
  CHECK(forms.choose(1, fewer) == version_form::update);
  CHECK(forms.choose(1, {.after = 4, .state_bytes = 100, .update_bytes = 100}) ==
        version_form::state);
  CHECK(forms.choose(1, {.after = 4, .state_bytes = 99, .update_bytes = 100}) ==
        version_form::state);
}

TEST_CASE("A keeper that shares memory with the stage, or may, is sent states") {
  CHECK(with_distant_keeper().choose(0, fewer) == version_form::state);
  CHECK_FALSE(version_forms_core(2, true).wants_updates());
}

TEST_CASE("Where another CPU may compute other bits every keeper is sent states") {
  const auto forms = with_distant_keeper(false);
  CHECK_FALSE(forms.wants_updates());
  CHECK(forms.choose(1, fewer) == version_form::state);
}

TEST_CASE("A keeper is sent an update only behind the version that it has") {
  version_forms_core forms(1, true);
  forms.is_apart(0);
  CHECK(forms.choose(0, fewer) == version_form::state);  // it has none
  forms.stored(0, 2);
  CHECK(forms.choose(0, fewer) == version_form::state);
  forms.stored(0, 4);
  CHECK(forms.choose(0, fewer) == version_form::update);
  forms.stored(0, 6);
  CHECK(forms.choose(0, fewer) == version_form::state);
}

TEST_CASE("A keeper in the place of a lost one is sent states until it is known and has one") {
  auto forms = with_distant_keeper();
  forms.replaced(1);
  CHECK_FALSE(forms.wants_updates());
  forms.stored(1, 4);
  CHECK(forms.choose(1, fewer) == version_form::state);
  forms.is_apart(1);
  CHECK(forms.choose(1, fewer) == version_form::update);
}

TEST_CASE("A keeper that did not take an update is sent a state, and updates behind that again") {
  auto forms = with_distant_keeper();
  forms.refused(1, false);
  CHECK(forms.choose(1, fewer) == version_form::state);
  forms.stored(1, 4);
  CHECK(forms.choose(1, fewer) == version_form::update);
}

TEST_CASE("A keeper that computes other bits is sent no update any more") {
  auto forms = with_distant_keeper();
  forms.refused(1, true);
  forms.stored(1, 4);
  CHECK_FALSE(forms.wants_updates());
  CHECK(forms.choose(1, fewer) == version_form::state);
  forms.replaced(1);
  forms.is_apart(1);
  CHECK(forms.wants_updates());
}
