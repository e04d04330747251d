// A list of tensor names with wildcards, as a setting has it: "*.bias,*norm*". * stands for any
// characters, also none and also dots. An empty list matches nothing.
#pragma once

#include <string>
#include <string_view>

namespace leeway {

// Does any of the comma-separated patterns match all of `name`?
bool matches_any(std::string_view patterns, std::string_view name);

}  // namespace leeway
