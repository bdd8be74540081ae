#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace troupe::actors {

/// What a node is told when another one is lost: "node 'stage-1' is gone: REASON", or where a
/// connection ended "node 'stage-1' is gone: peer 10.0.0.2:53121 is gone: REASON".
struct told_loss {
  std::string connection;  ///< "10.0.0.2:53121", or what else the link calls it; empty: none ended.
  std::string reason;
};

/// Nothing where a text says no such thing of that node. Pure.
inline std::optional<told_loss> loss_told_in(std::string_view text, const std::string& node) {
  const std::string told = "node '" + node + "' is gone";
  const auto at = text.find(told);
  if (at == std::string_view::npos) return std::nullopt;
  auto reason = text.substr(at + told.size());
  if (reason.starts_with(": ")) reason.remove_prefix(2);
  constexpr std::string_view peer = "peer ", is_gone = " is gone: ";
  const auto inner = reason.find(is_gone);
  if (!reason.starts_with(peer) || inner == std::string_view::npos)
    return told_loss{"", std::string(reason)};
  return told_loss{std::string(reason.substr(peer.size(), inner - peer.size())),
                   std::string(reason.substr(inner + is_gone.size()))};
}

}  // namespace troupe::actors
