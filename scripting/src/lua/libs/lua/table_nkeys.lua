local next = next
return function(tab)
    local count = 0
    for _ in next, tab do
        count = count + 1
    end
    return count
end
