#include "actors/base/errors.hpp"

#include <caf/atom.hpp>
#include <caf/exit_reason.hpp>
#include <caf/message.hpp>
#include <caf/sec.hpp>

namespace troupe::actors {
namespace {

const caf::atom_value category = caf::atom("troupe");
const caf::atom_value foreign = caf::atom("trforeign");

errc code_of(caf::sec code) {
  switch (code) {
    case caf::sec::unexpected_message:
    case caf::sec::unexpected_response:
      return errc::unknown_message;
    case caf::sec::request_timeout:
      return errc::timed_out;
    case caf::sec::request_receiver_down:
      return errc::unknown_target;
    default:
      return errc::handler_failed;
  }
}

}  // namespace

caf::error to_caf(const error& from) {
  return {static_cast<std::uint8_t>(from.code), category, caf::make_message(from.text)};
}

error from_caf(const caf::error& from) {
  if (!from) return {errc::handler_failed, "an actor failed without a reason"};
  if (from.category() == category || from.category() == foreign) {
    const auto& context = from.context();
    const bool has_text = context.size() == 1 && context.match_element<std::string>(0);
    return {static_cast<errc>(from.code()), has_text ? context.get_as<std::string>(0) : ""};
  }
  if (from.category() == caf::atom("exit")) {
    const auto reason = static_cast<caf::exit_reason>(from.code());
    const bool lost = reason == caf::exit_reason::remote_link_unreachable;
    return {lost ? errc::peer_lost : errc::unknown_target, "the actor ended: " + to_string(reason)};
  }
  if (from.category() == caf::atom("system")) {
    const auto code = static_cast<caf::sec>(from.code());
    return {code_of(code), "the actor answered: " + to_string(code)};
  }
  return {errc::handler_failed, "the actor failed with code " + std::to_string(from.code())};
}

bool is_own(const caf::error& what) {
  return what && what.category() == category;
}

caf::error to_caf_foreign(const error& from) {
  return {static_cast<std::uint8_t>(from.code), foreign, caf::make_message(from.text)};
}

}  // namespace troupe::actors
