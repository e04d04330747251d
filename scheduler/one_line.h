// Text from elsewhere, made fit for a message.
#pragma once

#include <string>
#include <string_view>

namespace leeway::scheduler {

// One line, of bounded length and without control characters, whatever a peer sent.
std::string one_line(std::string_view text);

}  // namespace leeway::scheduler
